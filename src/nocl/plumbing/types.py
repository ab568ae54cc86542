"""Types used everywhere: a batch of images with labels, the base session, and JSON values."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


class Batch(NamedTuple):
    """Images and labels as a learner receives them."""

    x: Tensor  # uint8 [B, 3, H, W] on the CPU
    y: Tensor  # int64 [B], the data set's own labels


@runtime_checkable
class BaseSession(Protocol):
    """The base classes' images: the one part of a stream that may be iterated more than once."""

    classes: tuple[int, ...]

    def __iter__(self) -> Iterator[Batch]:
        """One newly shuffled epoch."""
        ...

    def epoch(self, index: int) -> Iterator[Batch]:
        """The epoch with this index, always in the same order, so that training can be resumed."""
        ...

    def describe(self) -> dict[str, JSON]:
        """All settings that determine the images and their order."""
        ...
