"""Many runs: the description of a run (Job), grids of runs, comparisons on one network, tuning, the paper's tables."""
