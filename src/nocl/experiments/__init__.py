"""Many runs: a run as a description, grids of them, comparisons on stored features, tuning, the paper's tables."""
