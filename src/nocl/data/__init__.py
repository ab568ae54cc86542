"""Data sets by name. Each is a function that returns a :class:`Dataset`; nothing is loaded on import."""

from nocl.data.images import Dataset, ImageSet

__all__ = ["Dataset", "ImageSet"]
