"""The paper: its printed values, its tables and figures as grids of runs, and how ours compare."""
