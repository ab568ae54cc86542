"""What a run is worth: one test of a learner, and pure functions of the accuracy matrix. See docs/metrics.md.

A *row* holds, after some session, the class-mean accuracy on the base session's test set and on that of each
later session; the sessions not yet seen are ``None``, and no function reads them as 0. A *matrix* is
one row per session, the base first; *sizes* are the numbers of classes of all sessions. Nothing is edited.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from nocl.plumbing.types import Batch

Row = Sequence[float | None]
Matrix = Sequence[Row]
Weighting = Literal["class", "session"]


class Scores(NamedTuple):
    """The four numbers after one session; ``novel`` and ``hm`` are None before the first novel class."""

    acc: float
    base: float
    novel: float | None
    hm: float | None


def scores(row: Row, sizes: Sequence[int]) -> Scores:
    """Acc, base, novel and HM of one row.

    >>> scores((0.5, 0.5, None), (60, 20, 20))
    Scores(acc=0.5, base=0.5, novel=0.5, hm=0.5)
    """
    a, n = base(row), novel(row, sizes)
    return Scores(acc(row, sizes), a, n, None if n is None else hm(a, n))


def curve(matrix: Matrix, sizes: Sequence[int]) -> tuple[Scores, ...]:
    """The scores after each session, the base first."""
    return tuple(scores(row, sizes) for row in matrix)


def last(matrix: Matrix, sizes: Sequence[int]) -> Scores:
    """The scores after the last session that was learned: what the tables compare."""
    if not matrix:
        raise ValueError("the accuracy matrix has no rows; learn and test at least the base session")
    return scores(matrix[-1], sizes)


def acc(row: Row, sizes: Sequence[int], weighting: Weighting = "class") -> float:
    """Accuracy over all sessions seen: every class counts the same, or every session does.

    With weights by class this is (B * A_base + N * A_novel) / (B + N), the Acc of every table.

    >>> acc((0.75, 0.25, None), (6, 2, 2)), acc((0.75, 0.25, None), (6, 2, 2), "session")
    (0.625, 0.5)
    """
    return _mean(_seen(row, sizes), weighting)


def base(row: Row) -> float:
    """Mean accuracy of the base session's classes."""
    if not row or row[0] is None:
        raise ValueError("the row has no accuracy for the base session; it is tested after every session")
    return row[0]


def novel(row: Row, sizes: Sequence[int]) -> float | None:
    """Mean accuracy of all classes learned after the base session; None if there are none yet."""
    seen = _seen(row, sizes)[1:]
    return _mean(seen, "class") if seen else None


def hm(a: float, b: float) -> float:
    """Harmonic mean of base and novel accuracy; 0 if both are 0.

    >>> hm(0.0, 0.9), round(hm(52.4, 42.9), 2)
    (0.0, 47.18)
    """
    if a < 0 or b < 0:
        raise ValueError(f"accuracies are not negative, got {a} and {b}")
    if a == 0 or b == 0:
        return 0.0
    return 2 * a * (b / (a + b))  # this order cannot underflow to 0 / 0


def average(matrix: Matrix, sizes: Sequence[int], weighting: Weighting = "class") -> float:
    """Mean over the sessions, base included, of the accuracy after each of them."""
    if not matrix:
        raise ValueError("the accuracy matrix has no rows; learn and test at least the base session")
    return sum(acc(row, sizes, weighting) for row in matrix) / len(matrix)


def forgetting(matrix: Matrix, sizes: Sequence[int], weighting: Weighting = "class") -> float | None:
    """Mean drop of each earlier session's classes, from their best accuracy so far to the last one.

    The best is taken over the rows from a session's own to the last but one. The session learned last has no
    such row and is left out; None if no other is there. A drop may be negative: those classes improved.

    >>> forgetting([[0.75, None], [0.5, 0.9]], (6, 4))
    0.25
    """
    if len(matrix) < 2:
        return None
    earlier = [_seen(row, sizes) for row in matrix[:-1]]
    now = _seen(matrix[-1], sizes)
    drops = []
    for session in range(len(earlier[-1])):
        best = max(row[session][0] for row in earlier if session < len(row))
        drops.append((best - now[session][0], sizes[session]))
    return _mean(drops, weighting)


def session_means(class_row: Row, sizes: Sequence[int]) -> tuple[float | None, ...]:
    """One row of the accuracy matrix from the accuracy of each class, in the order of the sessions.

    >>> session_means((1.0, 0.5, 0.25, None), (2, 1, 1))
    (0.75, 0.25, None)
    """
    if len(class_row) != sum(sizes):
        raise ValueError(f"{len(class_row)} class accuracies for {sum(sizes)} classes")
    means: list[float | None] = []
    start = 0
    for size in sizes:
        part = class_row[start : start + size]
        known = [value for value in part if value is not None]
        if known and len(known) < size:
            raise ValueError(f"classes {start} to {start + size - 1} are one session, but only some have an accuracy")
        means.append(sum(known) / size if known else None)
        start += size
    return tuple(means)


def _seen(row: Row, sizes: Sequence[int]) -> list[tuple[float, int]]:
    """Accuracy and number of classes of each session seen; the unseen may only stand at the end."""
    if len(row) > len(sizes):
        raise ValueError(f"a row of {len(row)} sessions, but only {len(sizes)} sizes")
    seen = [(value, size) for value, size in zip(row, sizes) if value is not None]
    if not seen or any(value is None for value in row[: len(seen)]):
        raise ValueError(f"sessions are seen in order, base first, but the row is {list(row)}")
    return seen


def _mean(values: Sequence[tuple[float, int]], weighting: Weighting) -> float:
    if weighting not in ("class", "session"):
        raise ValueError(f"weighting {weighting!r} is not known; use 'class' or 'session'")
    weights = [size if weighting == "class" else 1 for _, size in values]
    if min(weights) < 1:
        raise ValueError(f"a session has at least one class, got sizes {weights}")
    return sum(value * weight for (value, _), weight in zip(values, weights)) / sum(weights)


@dataclass(frozen=True)
class Assessment:
    """What is known after one session; None for classes and sessions not yet seen."""

    sessions: tuple[float | None, ...]
    classes: tuple[float | None, ...]
    confusion: dict[str, int]


class Predicts(Protocol):
    """Anything that answers images with labels."""

    def predict(self, x: Tensor) -> Tensor: ...


class TestImages(Protocol):
    """Anything that hands out its images in batches."""

    def batches(self, batch_size: int) -> Iterator[Batch]: ...


def assess(
    learner: Predicts, test_sets: Sequence[TestImages], blocks: Sequence[Sequence[int]], batch_size: int = 128
) -> Assessment:
    """Test on ``test_sets``, the first of the sessions whose classes are ``blocks``."""
    pairs = [(y, learner.predict(x)) for images in test_sets for x, y in images.batches(batch_size)]
    truth, answer = torch.cat([y for y, _ in pairs]), torch.cat([p for _, p in pairs])
    return answers_row(truth, answer, blocks)


def answers_row(truth: Tensor, answer: Tensor, blocks: Sequence[Sequence[int]]) -> Assessment:
    """Accuracies and confusion of answers [N] where ``truth`` [N] holds the labels.

    >>> answers_row(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), [[0], [1], [2]]).sessions
    (0.5, 1.0, None)
    """
    right = truth == answer
    classes: list[float | None] = []
    for label in (label for block in blocks for label in block):
        of_class = right[truth == label]
        classes.append(float(of_class.double().mean()) if len(of_class) else None)
    base = torch.tensor(list(blocks[0]))
    from_base, to_base = torch.isin(truth, base), torch.isin(answer, base)
    confusion = {}
    for name, of_kind in (("base", from_base), ("novel", ~from_base)):
        confusion[f"{name}_right"] = int((of_kind & right).sum())
        confusion[f"{name}_as_base"] = int((of_kind & ~right & to_base).sum())
        confusion[f"{name}_as_novel"] = int((of_kind & ~right & ~to_base).sum())
    return Assessment(session_means(classes, [len(block) for block in blocks]), tuple(classes), confusion)
