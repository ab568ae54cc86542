"""A data set as a stream: a base session that may be repeated, then sessions in which every image comes once.

:func:`class_incremental` is the paper's stream: disjoint sessions of new classes. :func:`arrange` makes every other one
from a plan of ``nocl.arrivals``: blurred, unequal, repeating, without sessions.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.arrivals import STREAMS, Plan, PlanError, parse_plan
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
    """Images seen once: a second ``iter()`` raises. ``classes`` are those of its images, new or met before."""

    def __init__(
        self, index: int, classes: tuple[int, ...], images: ImageSet, batch_size: int, seed: int, drop_last: bool,
        in_order: bool = False,
    ) -> None:  # fmt: skip
        self.index, self.classes = index, classes
        self._images, self._batch_size, self._seed, self._drop_last = images, batch_size, seed, drop_last
        self._in_order = in_order
        self._consumed = False

    def __len__(self) -> int:
        """Number of batches."""
        return _n_batches(len(self._images), self._batch_size, self._drop_last)

    @property
    def n_images(self) -> int:
        """Number of images in it."""
        return min(len(self._images), len(self) * self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self._consumed:
            raise StreamConsumedError(f"session {self.index} has been seen: in this setting every image comes once")
        self._consumed = True
        order = torch.randperm(len(self._images), generator=generator(self._seed, "session", self.index)).numpy()
        if self._in_order:
            order = np.arange(len(self._images))
        return _batches(self._images, order, self._batch_size, self._drop_last)


class RepeatableSession:
    """The base session: each ``iter()`` is a newly shuffled epoch; ``epoch(i)`` always has the same order."""

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
    """A base session and the sessions after it. Iterate it for the sessions; each can be iterated once.

    ``blocks`` are the classes that each session brings for the first time, the base first: no class is in two of them,
    and a block is empty where a session brings nothing new (the base, if there is none). ``arrivals`` says which
    training images each session after the base contains; without it a session has all images of its block.
    ``boundaries`` is False for a stream that does not tell a learner when a session ends.
    """

    def __init__(
        self, data: Dataset, blocks: Sequence[tuple[int, ...]], about: dict[str, JSON], *, seed: int, batch_size: int,
        base_batch_size: int, drop_last: bool, arrivals: Sequence[NDArray[np.int64]] | None = None,
        boundaries: bool = True, in_order: bool = False, base_seed: int | None = None,
    ) -> None:  # fmt: skip
        base_seed = seed if base_seed is None else base_seed
        self.data, self.blocks, self._about = data, tuple(blocks), about
        self.image_size, self.boundaries = data.image_size, boundaries
        base_about: dict[str, JSON] = {
            "dataset": data.name,
            "fingerprint": data.fingerprint,
            "order_seed": base_seed,
            **data.made_by,
        }
        self.base = RepeatableSession(
            self.blocks[0], data.train.where(self.blocks[0]), base_batch_size, base_seed, base_about
        )
        if arrivals is None:
            parts = [(block, data.train.where(block)) for block in self.blocks[1:]]
        else:
            order = [label for block in self.blocks for label in block]
            parts = [(_classes_at(data, rows, order), data.train.subset(rows)) for rows in arrivals]
        self.sessions = tuple(
            Session(i, classes, images, batch_size, seed, drop_last, in_order)
            for i, (classes, images) in enumerate(parts, 1)
        )

    def __iter__(self) -> Iterator[Session]:
        return iter(self.sessions)

    def __len__(self) -> int:
        """Number of sessions after the base session."""
        return len(self.sessions)

    def test_sets(self, upto: int) -> list[ImageSet]:
        """Test images of the base classes, then of the classes that sessions 1 to ``upto`` brought."""
        return [self.data.test.where(block) for block in self.blocks[: upto + 1]]

    def test_images(self, labels: Collection[int]) -> ImageSet:
        """Test images of these classes."""
        return self.data.test.where(sorted(labels))

    def describe(self) -> dict[str, JSON]:
        """Enough to build this stream again: see :func:`rebuild`."""
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
    sizes = parse_partition(partition, data.n_classes)
    order = _class_order(data, order_seed, batch_size, base_batch_size)
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


def arrange(
    data: Dataset,
    plan: Plan | str,
    *,
    batch_size: int = 10,
    base_batch_size: int = 100,
    order_seed: int = 0,
    seed: int | None = None,
    drop_last: bool = False,
    base: Sequence[int] | None = None,
    rows_at_once: int | None = None,
    more: Mapping[str, JSON] = MappingProxyType({}),
) -> Stream:
    """The images of a data set in the order of a plan, such as ``"si_blurry:disjoint=0.5,blur=0.1,sessions=5"``.

    ``order_seed`` decides which classes are in the base session, as in :func:`class_incremental`, unless ``base`` names
    them; ``seed`` (default: the same) decides everything after it, so many streams can share one base network. An
    ordered stream has batches of one image, whatever ``batch_size`` is. ``rows_at_once`` makes larger batches of any
    stream, for methods whose result does not depend on them. ``more`` is added to the stream's description.
    """
    plan = parse_plan(plan) if isinstance(plan, str) else plan
    seed = order_seed if seed is None else seed
    order = _class_order(data, order_seed, batch_size, base_batch_size)
    n_base = base_size(plan, data)
    if base is not None:
        if len(set(base)) != n_base or not set(base) <= set(order):
            raise PlanError(f"stream: base={plan.base} % is {n_base} different classes of the data set, not {base}")
        order = [*base, *(label for label in order if label not in set(base))]
    rows = {label: np.flatnonzero(data.train.labels == label) for label in order[n_base:]}
    arrivals = plan.arrange(rows, generator(seed, "stream"))
    about: dict[str, JSON] = {
        "dataset": data.name,
        "options": data.options,
        "fingerprint": data.fingerprint,
        "partition": plan.describe(),
        "order_seed": order_seed,
        "seed": seed,
        "batch_size": 1 if plan.in_order else batch_size,
        "base_batch_size": base_batch_size,
        "drop_last": drop_last,
        **data.made_by,
        **({} if rows_at_once is None else {"rows_at_once": rows_at_once}),
        **more,
    }
    return Stream(
        data,
        _first_met(data, order[:n_base], arrivals, order),
        about,
        seed=seed,
        batch_size=rows_at_once or (1 if plan.in_order else batch_size),
        base_batch_size=max(base_batch_size, rows_at_once or 0),
        drop_last=drop_last,
        arrivals=arrivals,
        boundaries=plan.boundaries,
        in_order=plan.in_order,
        base_seed=order_seed,
    )


def base_size(plan: Plan, data: Dataset) -> int:
    """How many classes of the data set the plan's base session has."""
    if plan.base * data.n_classes % 100:
        raise PlanError(
            f"stream: base={plan.base} % of {data.n_classes} classes is {plan.base * data.n_classes / 100:g}, not a "
            "whole number; choose another percentage, or base=0 for no base session"
        )
    return plan.base * data.n_classes // 100


def rebuild(data: Dataset, described: Mapping[str, JSON]) -> Stream:
    """The stream that a result describes; an error if the data are not the same."""
    if described["fingerprint"] != data.fingerprint:
        raise ValueError(f"{data.name} has fingerprint {data.fingerprint}, the stream's is {described['fingerprint']}")
    names = ("order_seed", "batch_size", "base_batch_size", "drop_last")
    values = {name: described[name] for name in names}
    partition = str(described["partition"])
    if "seed" in described:
        blocks, rows = described["sessions"], described.get("rows_at_once")
        base = blocks[0] if isinstance(blocks, list) else None
        return arrange(data, partition, seed=described["seed"], base=base, rows_at_once=rows, **values)  # type: ignore[arg-type]
    return class_incremental(data, partition=partition, **values)  # type: ignore[arg-type]


def parse_partition(text: str, n_classes: int) -> list[int]:
    """Classes of each session, base first.

    >>> parse_partition("60+4x10", 100)
    [60, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    >>> parse_partition("80+2x10", 50)
    [40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    >>> parse_partition("0+50x2", 100)  # no base session
    [0, 50, 50]
    """
    if text.strip() == JOINT:
        return [n_classes]
    match = re.fullmatch(r"(\d+)\+(\d+)x(\d+)", text.strip())
    if match is None:
        raise PartitionError(f"partition {text!r}: write BASE+EACHxSESSIONS in percent of the classes, e.g. 60+4x10")
    base, each, sessions = (int(group) for group in match.groups())
    if each < 1 or sessions < 1:
        raise PartitionError(f"partition {text!r}: classes per session and sessions must both be at least 1")
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


def _class_order(data: Dataset, order_seed: int, batch_size: int, base_batch_size: int) -> list[int]:
    """All classes in the order given by the seed, after checking that every class has images."""
    if batch_size < 1 or base_batch_size < 1:
        raise ValueError(f"batch sizes must be 1 or more, not {min(batch_size, base_batch_size)}")
    for images, part in ((data.train, "training"), (data.test, "test")):
        absent = sorted(set(range(data.n_classes)) - set(np.unique(images.labels).tolist()))
        if absent:
            named = ", ".join(data.class_names[label] for label in absent[:5])
            raise ValueError(
                f"{data.name}: {len(absent)} classes have no {part} images ({named}); every class needs one"
            )
    order: list[int] = torch.randperm(data.n_classes, generator=torch.Generator().manual_seed(order_seed)).tolist()
    return order


def _classes_at(data: Dataset, rows: NDArray[np.int64], order: Sequence[int]) -> tuple[int, ...]:
    """The classes of these training images, in the order given."""
    present = set(data.train.labels[rows].tolist())
    return tuple(label for label in order if label in present)


def _first_met(
    data: Dataset, base: Sequence[int], arrivals: Sequence[NDArray[np.int64]], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """The classes each session brings for the first time, the base first."""
    blocks, met = [tuple(base)], set(base)
    for rows in arrivals:
        blocks.append(tuple(label for label in _classes_at(data, rows, order) if label not in met))
        met |= set(blocks[-1])
    return blocks


def _n_batches(n: int, size: int, drop_last: bool) -> int:
    return n // size if drop_last else -(-n // size)


def _batches(images: ImageSet, order: NDArray[np.int64], size: int, drop_last: bool) -> Iterator[Batch]:
    for i in range(_n_batches(len(order), size, drop_last)):
        yield images.take(order[i * size : (i + 1) * size])


__all__ = [
    "PARTITIONS",
    "STREAMS",
    "PartitionError",
    "PlanError",
    "RepeatableSession",
    "Session",
    "Stream",
    "StreamConsumedError",
    "arrange",
    "base_size",
    "class_incremental",
    "parse_partition",
    "parse_plan",
    "rebuild",
]
