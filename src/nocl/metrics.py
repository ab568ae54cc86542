"""Accuracy: testing a learner, and functions of the accuracy matrix. See docs/metrics.md.

A *row* holds, after some session, the class-mean accuracy on the test images of the classes that the base session
brought and of those that each later session brought first; what is not yet seen is ``None``, and no function reads it
as 0. A *matrix* has one row for each session, the base first; *sizes* are the numbers of new classes of the sessions, 0
for a session without new classes or a missing base session. No function changes its arguments.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from nocl.plumbing.types import Batch

Row = Sequence[float | None]
Matrix = Sequence[Row]
Weighting = Literal["class", "session"]


class Scores(NamedTuple):
    """The four numbers after one session; None where there is no class of that kind yet."""

    acc: float | None
    base: float | None
    novel: float | None
    hm: float | None


def scores(row: Row, sizes: Sequence[int]) -> Scores:
    """Acc, base, novel and HM of one row.

    >>> scores((0.5, 0.5, None), (60, 20, 20))
    Scores(acc=0.5, base=0.5, novel=0.5, hm=0.5)
    """
    if not any(sizes[: len(row)]) or (sizes[0] == 0 and all(value is None for value in row)):
        return Scores(None, None, None, None)  # no base session, and nothing learned yet
    a = base(row) if sizes[0] else None
    n = novel(row, sizes)
    return Scores(acc(row, sizes), a, n, None if a is None or n is None else hm(a, n))


def curve(matrix: Matrix, sizes: Sequence[int]) -> tuple[Scores, ...]:
    """The scores after each session, the base first."""
    return tuple(scores(row, sizes) for row in matrix)


def last(matrix: Matrix, sizes: Sequence[int]) -> Scores:
    """The scores after the last session learned, which the tables compare."""
    if not matrix:
        raise ValueError("the accuracy matrix has no rows; learn and test at least the base session")
    return scores(matrix[-1], sizes)


def acc(row: Row, sizes: Sequence[int], weighting: Weighting = "class") -> float:
    """Accuracy over all sessions seen: every class counts the same, or every session does.

    With weights by class this is (B * A_base + N * A_novel) / (B + N), the Acc of every table.

    >>> acc((0.75, 0.25, None), (6, 2, 2)), acc((0.75, 0.25, None), (6, 2, 2), "session")
    (0.625, 0.5)
    """
    return _mean(list(_seen(row, sizes).values()), weighting)


def base(row: Row) -> float:
    """Mean accuracy of the base session's classes."""
    if not row or row[0] is None:
        raise ValueError("the row has no accuracy for the base session; it is tested after every session")
    return row[0]


def novel(row: Row, sizes: Sequence[int]) -> float | None:
    """Mean accuracy of all classes learned after the base session; None if there are none yet."""
    seen = [cell for session, cell in _seen(row, sizes).items() if session > 0]
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
    rows = [row for row in matrix if any(value is not None for value in row)]
    if not rows:
        raise ValueError("the accuracy matrix has no rows; learn and test at least the base session")
    return sum(acc(row, sizes, weighting) for row in rows) / len(rows)


def forgetting(matrix: Matrix, sizes: Sequence[int], weighting: Weighting = "class") -> float | None:
    """Mean drop of each earlier session's classes, from their best accuracy so far to the last one.

    The best is taken over the rows from a session's own to the last but one. The session learned last has no
    such row and is left out; None if no other is there. A drop may be negative: those classes improved.

    >>> forgetting([[0.75, None], [0.5, 0.9]], (6, 4))
    0.25
    """
    rows = [_seen(row, sizes) for row in matrix if any(value is not None for value in row)]
    if len(rows) < 2:
        return None
    *earlier, now = rows
    drops = []
    for session in earlier[-1]:
        best = max(row[session][0] for row in earlier if session in row)
        drops.append((best - now[session][0], sizes[session]))
    return _mean(drops, weighting)


def class_forgetting(rows: Matrix) -> float | None:
    """Mean drop of each class from its best accuracy in earlier rows to the last; ``rows`` are of classes, by test.

    A class that only the last row knows is left out; None if there is no other.

    >>> class_forgetting([(0.75, None), (0.5, 0.9), (0.5, 0.5)])
    0.325
    """
    *earlier, now = rows
    drops = []
    for column, value in enumerate(now):
        before = [row[column] for row in earlier]
        known = [past for past in before if past is not None]
        if known and value is not None:
            drops.append(max(known) - value)
    return sum(drops) / len(drops) if drops else None


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
        means.append(sum(known) / size if known else None)  # None too where a session brought no class
        start += size
    return tuple(means)


def _seen(row: Row, sizes: Sequence[int]) -> dict[int, tuple[float, int]]:
    """Accuracy and number of classes of each session seen; sessions not seen must come last."""
    if len(row) > len(sizes):
        raise ValueError(f"a row of {len(row)} sessions, but only {len(sizes)} sizes")
    seen = {i: (value, size) for i, (value, size) in enumerate(zip(row, sizes)) if value is not None}
    if not seen or any(value is None and size for value, size in zip(row[: max(seen)], sizes)):
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
    """The test after one session; None for classes and sessions not yet seen."""

    sessions: tuple[float | None, ...]
    classes: tuple[float | None, ...]
    confusion: dict[str, int]


class Predicts(Protocol):
    """Anything that predicts labels of images."""

    def predict(self, x: Tensor) -> Tensor: ...


class TestImages(Protocol):
    """Anything that yields its images in batches."""

    def batches(self, batch_size: int) -> Iterator[Batch]: ...


def assess(
    learner: Predicts, test_sets: Sequence[TestImages], blocks: Sequence[Sequence[int]], batch_size: int = 128
) -> Assessment:
    """Test on ``test_sets``, one for each of the first sessions; ``blocks`` are the classes of all sessions."""
    return answers_row(*_answers(learner, test_sets, batch_size), blocks)


def answers_row(truth: Tensor, answer: Tensor, blocks: Sequence[Sequence[int]]) -> Assessment:
    """Accuracies and confusion of predictions ``answer`` [N] for the true labels ``truth`` [N].

    >>> answers_row(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), [[0], [1], [2]]).sessions
    (0.5, 1.0, None)
    """
    classes = class_accuracies(truth, answer, blocks)
    right, base = truth == answer, torch.tensor(list(blocks[0]))
    from_base, to_base = torch.isin(truth, base), torch.isin(answer, base)
    confusion = {}
    for name, of_kind in (("base", from_base), ("novel", ~from_base)):
        confusion[f"{name}_right"] = int((of_kind & right).sum())
        confusion[f"{name}_as_base"] = int((of_kind & ~right & to_base).sum())
        confusion[f"{name}_as_novel"] = int((of_kind & ~right & ~to_base).sum())
    return Assessment(session_means(classes, [len(block) for block in blocks]), classes, confusion)


def class_accuracies(truth: Tensor, answer: Tensor, blocks: Sequence[Sequence[int]]) -> tuple[float | None, ...]:
    """The share of correct predictions for each class, in the order of the blocks; None without images."""
    classes: list[float | None] = []
    for label in (label for block in blocks for label in block):
        of_class = answer[truth == label] == label
        classes.append(float(of_class.double().mean()) if len(of_class) else None)
    return tuple(classes)


def _answers(learner: Predicts, test_sets: Sequence[TestImages], batch_size: int) -> tuple[Tensor, Tensor]:
    """True labels [N] of the test images and predicted labels [N]."""
    none = torch.zeros(0, dtype=torch.int64)
    pairs = [(y, learner.predict(x)) for images in test_sets for x, y in images.batches(batch_size)]
    return torch.cat([none, *[y for y, _ in pairs]]), torch.cat([none, *[p for _, p in pairs]])


# --- tests while learning -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anytime:
    """Results of tests within sessions. Images are counted from the end of the base session."""

    every: int  # images between two tests
    images: tuple[int, ...] = ()  # images learned before each test
    accuracy: tuple[float, ...] = ()  # over the test images of the classes met by then
    class_accuracy: tuple[tuple[float | None, ...], ...] = ()  # [test][class, in the order of the blocks]

    @property
    def area(self) -> float | None:
        """A_AUC: the mean of the accuracies, because the tests are equally spaced."""
        return sum(self.accuracy) / len(self.accuracy) if self.accuracy else None


class Delivers(Protocol):
    """A session, of which only the number of images is needed here."""

    @property
    def n_images(self) -> int: ...


class Tested(Protocol):
    """What a test needs of a stream: the new classes of each session, and test images of any classes."""

    @property
    def blocks(self) -> Sequence[Sequence[int]]: ...

    @property
    def sessions(self) -> Sequence[Delivers]: ...

    def test_images(self, labels: Collection[int]) -> TestImages: ...


class Exam:
    """The tests within one session, after every ``every`` images (0: never). Measures its own time.

    ``before`` holds the tests of earlier sessions, to which it adds. With ``cut``, batches are divided where a test is
    due, so that it comes at exactly that image. Without, it comes at the end of the batch, because a test must not
    change what a learner that depends on batches learns.
    """

    def __init__(
        self, learner: Predicts, stream: Tested, session: int, before: Anytime | None, *, every: int, batch_size: int,
        cut: bool = False,
    ) -> None:  # fmt: skip
        self._learner, self._stream, self._batch_size, self._cut = learner, stream, batch_size, cut
        self._met = {label for block in stream.blocks[:session] for label in block}
        self._images = sum(done.n_images for done in stream.sessions[: session - 1])
        self.found, self.seconds = before or (Anytime(every) if every else None), 0.0
        self.answers: tuple[Tensor, Tensor] | None = None  # of a test after which no image has come

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch in the parts between which tests are due; each must be learned, then told to :meth:`after`."""
        if self.found is None or not self._cut:
            yield batch
            return
        every, start = self.found.every, 0
        while start < len(batch.y):
            end = start + every - self._images % every  # `after` has counted the parts before
            yield Batch(batch.x[start:end], batch.y[start:end])
            start = end

    def after(self, y: Tensor) -> None:
        """Call after learning images with the labels ``y``; tests if it is time."""
        if self.found is None:
            return
        before, self._images = self._images, self._images + len(y)
        self._met |= set(y.tolist())
        self.answers = None
        if before // self.found.every == self._images // self.found.every:
            return
        start = perf_counter()
        truth, answer = _answers(self._learner, [self._stream.test_images(self._met)], self._batch_size)
        self.answers = truth, answer
        self.found = Anytime(
            self.found.every,
            (*self.found.images, self._images),
            (*self.found.accuracy, float((truth == answer).double().mean())),
            (*self.found.class_accuracy, class_accuracies(truth, answer, self._stream.blocks)),
        )
        self.seconds += perf_counter() - start
