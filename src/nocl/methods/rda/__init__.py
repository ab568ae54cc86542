"""rda: the method, the covariances it keeps, and the shortlist it scores first."""

from nocl.methods.rda.method import RDA

__all__ = ["RDA"]
