"""A data set as a stream: a base session that may be repeated, then sessions of new classes, each seen once."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.data import Dataset, ImageSet
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch

PARTITIONS = ("60+4x10", "40+6x10", "80+2x10", "60+2x20")
JOINT = "100+0x0"  # all classes in the base session: the bound of joint training


class StreamConsumedError(RuntimeError):
    """A session was iterated a second time."""


class PartitionError(ValueError):
    """A partition that is badly written or does not divide the data set."""


class Session:
    """New classes, seen once: a second ``iter()`` raises."""

    def __init__(
        self,
        index: int,
        classes: tuple[int, ...],
        images: ImageSet,
        batch_size: int,
        seed: int,
        drop_last: bool,
    ) -> None:
        self.index, self.classes = index, classes
        self._images, self._batch_size, self._seed, self._drop_last = images, batch_size, seed, drop_last
        self._consumed = False

    def __len__(self) -> int:
        """Number of batches."""
        return _n_batches(len(self._images), self._batch_size, self._drop_last)

    def __iter__(self) -> Iterator[Batch]:
        if self._consumed:
            raise StreamConsumedError(f"session {self.index} has been seen: in this setting every image comes once")
        self._consumed = True
        order = torch.randperm(len(self._images), generator=generator(self._seed, "session", self.index)).numpy()
        return _batches(self._images, order, self._batch_size, self._drop_last)


class RepeatableSession:
    """The base session: each ``iter()`` is one freshly shuffled epoch, and ``epoch(i)`` is always the same one."""

    def __init__(
        self, classes: tuple[int, ...], images: ImageSet, batch_size: int, seed: int, about: dict[str, JSON]
    ) -> None:
        self.classes = classes
        self._images, self._batch_size, self._seed, self._about = images, batch_size, seed, about
        self._next = 0

    def __len__(self) -> int:
        return _n_batches(len(self._images), self._batch_size, False)

    def __iter__(self) -> Iterator[Batch]:
        self._next += 1
        return self.epoch(self._next - 1)

    def epoch(self, index: int) -> Iterator[Batch]:
        order = torch.randperm(len(self._images), generator=generator(self._seed, "base epoch", index)).numpy()
        return _batches(self._images, order, self._batch_size, False)

    def describe(self) -> dict[str, JSON]:
        return {**self._about, "classes": list(self.classes), "batch_size": self._batch_size}


class Stream:
    """A base session and the sessions after it. Iterate it for the sessions; each can be iterated once."""

    def __init__(
        self, data: Dataset, blocks: Sequence[tuple[int, ...]], about: dict[str, JSON], *, seed: int, batch_size: int,
        base_batch_size: int, drop_last: bool,
    ) -> None:  # fmt: skip
        self.data, self.blocks, self._about = data, tuple(blocks), about
        self.image_size = data.image_size
        base_about: dict[str, JSON] = {
            "dataset": data.name,
            "fingerprint": data.fingerprint,
            "order_seed": seed,
        }
        self.base = RepeatableSession(
            self.blocks[0], data.train.where(self.blocks[0]), base_batch_size, seed, base_about
        )
        self.sessions = tuple(
            Session(i, block, data.train.where(block), batch_size, seed, drop_last)
            for i, block in enumerate(self.blocks)
            if i > 0
        )

    def __iter__(self) -> Iterator[Session]:
        return iter(self.sessions)

    def __len__(self) -> int:
        """Number of sessions after the base session."""
        return len(self.sessions)

    def test_sets(self, upto: int) -> list[ImageSet]:
        """Test images of the base classes, then of sessions 1 to ``upto``."""
        return [self.data.test.where(block) for block in self.blocks[: upto + 1]]

    def describe(self) -> dict[str, JSON]:
        """Enough to build this stream again."""
        return {**self._about, "sessions": [list(block) for block in self.blocks]}


def class_incremental(
    data: Dataset,
    *,
    partition: str = "60+4x10",
    batch_size: int = 10,
    base_batch_size: int = 100,
    order_seed: int = 0,
    drop_last: bool = False,
) -> Stream:
    """Split a data set's classes into a base session and sessions of new ones, in an order decided by a seed.

    ``partition`` is in percent of the classes, as in the paper: ``60+4x10`` is 60 % base classes, then sessions of
    4 % of a hundred-class set, ten of them. See :func:`parse_partition`.
    """
    if batch_size < 1 or base_batch_size < 1:
        raise ValueError(f"batch sizes must be 1 or more, not {min(batch_size, base_batch_size)}")
    sizes = parse_partition(partition, data.n_classes)
    for images, part in ((data.train, "training"), (data.test, "test")):
        absent = sorted(set(range(data.n_classes)) - set(np.unique(images.labels).tolist()))
        if absent:
            named = ", ".join(data.class_names[label] for label in absent[:5])
            raise ValueError(
                f"{data.name}: {len(absent)} classes have no {part} images ({named}); every class needs one"
            )
    order = torch.randperm(data.n_classes, generator=torch.Generator().manual_seed(order_seed)).tolist()
    edges = np.cumsum([0, *sizes])
    blocks = [tuple(order[a:b]) for a, b in pairwise(edges)]
    about: dict[str, JSON] = {
        "dataset": data.name,
        "options": data.options,
        "fingerprint": data.fingerprint,
        "partition": partition,
        "order_seed": order_seed,
        "batch_size": batch_size,
        "base_batch_size": base_batch_size,
        "drop_last": drop_last,
    }
    return Stream(
        data,
        blocks,
        about,
        seed=order_seed,
        batch_size=batch_size,
        base_batch_size=base_batch_size,
        drop_last=drop_last,
    )


def parse_partition(text: str, n_classes: int) -> list[int]:
    """Classes of each session, base first.

    >>> parse_partition("60+4x10", 100)
    [60, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    >>> parse_partition("80+2x10", 50)
    [40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    if text.strip() == JOINT:
        return [n_classes]
    match = re.fullmatch(r"(\d+)\+(\d+)x(\d+)", text.strip())
    if match is None:
        raise PartitionError(f"partition {text!r}: write BASE+EACHxSESSIONS in percent of the classes, e.g. 60+4x10")
    base, each, sessions = (int(group) for group in match.groups())
    if base < 1 or each < 1 or sessions < 1:
        raise PartitionError(f"partition {text!r}: base, classes per session and sessions must all be at least 1")
    if base + each * sessions != 100:
        total = base + each * sessions
        raise PartitionError(f"partition {text!r}: {base} + {each} x {sessions} = {total} %, but it must be 100 %")
    for percent, what in ((base, "base session"), (each, "each session")):
        if percent * n_classes % 100:
            raise PartitionError(
                f"partition {text!r}: {percent} % of {n_classes} classes for {what} is {percent * n_classes / 100:g}, "
                f"not a whole number; partitions that divide: {', '.join(_that_divide(n_classes)) or 'none'}"
            )
    return [base * n_classes // 100] + [each * n_classes // 100] * sessions


def _that_divide(n_classes: int) -> list[str]:
    usual = (*PARTITIONS, "50+5x10", "50+10x5", "50+25x2", "20+20x4", "80+20x1", "50+50x1")
    return [text for text in usual if all(int(p) * n_classes % 100 == 0 for p in re.findall(r"\d+", text)[:2])]


def _n_batches(n: int, size: int, drop_last: bool) -> int:
    return n // size if drop_last else -(-n // size)


def _batches(images: ImageSet, order: NDArray[np.int64], size: int, drop_last: bool) -> Iterator[Batch]:
    for i in range(_n_batches(len(order), size, drop_last)):
        yield images.take(order[i * size : (i + 1) * size])
