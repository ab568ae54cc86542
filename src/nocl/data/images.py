"""Labelled images as arrays, in memory or memory-mapped: the form of every data set."""

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.plumbing.types import JSON, Batch


class MissingDataError(FileNotFoundError):
    """Files of a data set are missing; the message says which and where to put them."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images ``uint8 [N, 3, H, W]`` with labels ``int64 [N]``; a subset shares the images of the whole.

    ``images`` may be a ``numpy.memmap``: rows are read only when a batch asks for them, and do not stay in
    memory. ``rows`` says which rows of ``images`` belong to this set, in order; ``labels[i]`` is the label of
    ``images[rows[i]]``.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: Sequence[int] | NDArray[np.integer]) -> "ImageSet":
        """All the images, after a check of shape and type."""
        numbers: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 [N, 3, H, W], not {images.dtype} {list(images.shape)}")
        if numbers.shape != (len(images),):
            raise ValueError(f"{len(images)} images need {len(images)} labels, not {list(numbers.shape)}")
        return cls(images, numbers, np.arange(len(images)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    def take(self, positions: NDArray[np.integer] | Sequence[int]) -> Batch:
        """A batch with copies of these images, in this order."""
        positions = np.asarray(positions, dtype=np.int64)
        x = torch.from_numpy(np.asarray(self.images[self.rows[positions]]))
        _release(self.images)
        return Batch(x, torch.from_numpy(self.labels[positions]))

    def where(self, labels: Sequence[int]) -> "ImageSet":
        """The images of these labels, in their order here."""
        keep = np.isin(self.labels, np.asarray(labels))
        return ImageSet(self.images, self.labels[keep], self.rows[keep])

    def subset(self, positions: NDArray[np.integer]) -> "ImageSet":
        """The images at these positions."""
        return ImageSet(self.images, self.labels[positions], self.rows[positions])

    def batches(self, size: int = 128) -> Iterator[Batch]:
        """All images once, in order; the last batch may be short."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    @cached_property
    def content(self) -> str:
        """Hash of all pixels and labels, in order."""
        digest = hashlib.sha256(repr((self.size, len(self))).encode())
        for x, y in self.batches(1024):
            digest.update(x.numpy().tobytes())
            digest.update(y.numpy().tobytes())
        return digest.hexdigest()[:16]


def _release(images: NDArray[np.uint8]) -> None:
    """Unmap the pages of a memory-mapped file that were read, so that a long stream does not fill the memory.

    They stay in the system's page cache, so a second read is fast.
    """
    if isinstance(images.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        images.base.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images of the same classes. Labels are ``0 .. len(class_names) - 1``.

    ``options`` records how the set was made (seed, size, split rule, frames left out): enough, with the
    name, to make it again, and stored in every result.
    """

    name: str
    train: ImageSet
    test: ImageSet
    class_names: tuple[str, ...]
    options: dict[str, JSON] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_size(self) -> int:
        """Side of the square images."""
        height, width = self.train.size
        if height != width:
            raise ValueError(f"{self.name}: images are {height}x{width}; learners take square ones")
        return height

    @property
    def made_by(self) -> dict[str, JSON]:
        """How the rows were made if they are not images; part of every stream's description."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Content hash of both splits: results made from different pixels never share a cache."""
        return hashlib.sha256(f"{self.train.content}:{self.test.content}".encode()).hexdigest()[:16]
