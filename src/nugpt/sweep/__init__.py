"""Grid to plan, plan to records: growth of the grid, workers, executors. The engine is passed in as a function."""
