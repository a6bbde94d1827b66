"""Where a plan's workers run: processes of this machine, or tasks of a SLURM array."""
