"""What is counted: class statistics, ridge regression, matrix roots, and the memory of exemplars."""
