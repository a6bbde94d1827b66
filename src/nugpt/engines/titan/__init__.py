"""Many devices: νGPT trained by TorchTitan from the functions, tables and data that the lab engine uses."""
