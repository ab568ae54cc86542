"""Class statistics, ridge regression, linear algebra, and the memory of exemplars."""
