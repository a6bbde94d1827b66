"""The command line. Each command is a frozen dataclass whose `run` imports what it needs."""
