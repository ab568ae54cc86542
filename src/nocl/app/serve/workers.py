"""The two threads of the service: one predicts, one learns. Requests that arrive while a thread works are grouped.

Predictions use the published model and never wait for learning. One thread learns, because the order matters and one
flush to disk is enough for all requests of a group.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from nocl.app.classifier import Classifier
from nocl.app.serve.store import Key, OtherRequestError, Receipt, Store
from nocl.data.decode import Fit
from nocl.learner import NotFittedError

J = TypeVar("J")
R = TypeVar("R")


class FullError(RuntimeError):
    """Too much is waiting already; try again later."""


class ClosedError(RuntimeError):
    """The service is stopping."""


class ReplacedError(RuntimeError):
    """The pictures were brought to the size of a model that is no longer there."""

    def __init__(self) -> None:
        super().__init__("the model was replaced meanwhile, send it again")


class Frame(NamedTuple):
    """How pictures are brought to size for a model."""

    size: int
    fit: Fit

    @classmethod
    def of(cls, model: Classifier) -> "Frame":
        return cls(model.size, model.fit_to_size)


@dataclass
class _Job(Generic[J, R]):
    item: J
    weight: int
    answer: "Future[R]" = field(default_factory=Future)


class Worker(Generic[J, R]):
    """A thread that takes waiting items in groups of bounded weight and answers each."""

    def __init__(
        self, name: str, work: Callable[[list[J]], Sequence[R | Exception]], *, waiting: int, together: int
    ) -> None:
        self._work, self._waiting, self._together = work, waiting, together
        self._queue: queue.SimpleQueue[_Job[J, R] | None] = queue.SimpleQueue()
        self._lock, self._load, self._closed = threading.Lock(), 0, False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """The weight of what waits or is being worked on."""
        return self._load

    def submit(self, item: J, weight: int) -> "Future[R]":
        """Queue an item; raises FullError when too much waits."""
        job: _Job[J, R] = _Job(item, weight)
        job.answer.set_running_or_notify_cancel()  # nobody can cancel it: it would be done all the same
        with self._lock:
            if self._closed:
                raise ClosedError("the service is stopping")
            if self._load and self._load + weight > self._waiting:
                raise FullError(f"{self._load} are waiting, the limit is {self._waiting}")
            self._load += weight
            self._queue.put(job)
        return job.answer

    def close(self) -> None:
        """Finish what is waiting, take no more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        held: _Job[J, R] | None = None
        while True:
            first = held or self._queue.get()
            if first is None:
                return
            group, held, stop = self._gather(first)
            self._answer(group)
            if stop:
                return

    def _gather(self, first: _Job[J, R]) -> tuple[list[_Job[J, R]], _Job[J, R] | None, bool]:
        group, weight = [first], first.weight
        while weight < self._together:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, None, True
            if weight + job.weight > self._together:
                return group, job, False
            group.append(job)
            weight += job.weight
        return group, None, False

    def _answer(self, group: list[_Job[J, R]]) -> None:
        try:
            results: Sequence[R | Exception] = self._work([job.item for job in group])
        except Exception as error:  # any error is the answer to every waiting request, and the thread continues
            results = [error] * len(group)
        with self._lock:
            self._load -= sum(job.weight for job in group)
        for job, result in zip(group, results):
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)


@dataclass(frozen=True)
class Batch:
    """Images to score, and how they were brought to size."""

    images: Tensor  # uint8 [B, 3, size, size]
    frame: Frame


@dataclass(frozen=True)
class Prediction:
    """Scores of one request's images and the model that gave them."""

    scores: Tensor  # [B, K]
    model: Classifier


def predictor(store: Store, *, waiting: int, together: int) -> Worker[Batch, Prediction]:
    """A worker that scores batches of images with the model published when it starts on them."""

    def work(batches: list[Batch]) -> list[Prediction | Exception]:
        model = store.model
        if not len(model.learner_.classes_):
            return [NotFittedError("the model knows no class yet: teach it one")] * len(batches)
        fitting = [batch.images for batch in batches if batch.frame == Frame.of(model)]
        scored: Iterator[Prediction] = iter(())
        if fitting:
            with torch.no_grad():
                scores = model.learner_.decision_function(torch.cat(fitting)).cpu()
            scored = (Prediction(part, model) for part in scores.split([len(x) for x in fitting]))
        return [next(scored) if batch.frame == Frame.of(model) else ReplacedError() for batch in batches]

    return Worker("predict", work, waiting=waiting, together=together)


@dataclass(frozen=True)
class Lesson:
    """Images of one class to learn, or (with none) a class to forget; the client's key for it, if it sent one."""

    name: str
    images: Tensor | None
    key: Key | None = None
    whole: Callable[[Store], Receipt] | None = None  # a change of the whole model instead
    frame: Frame | None = None  # how the images were brought to size; None: as the model wants them


def teacher(store: Store, *, waiting: int, together: int, max_classes: int) -> Worker[Lesson, Receipt]:
    """The one worker that changes the model. When it answers, the change is on disk."""

    def work(lessons: list[Lesson]) -> list[Receipt | Exception]:
        answers: list[Receipt | Exception] = []
        for run in _runs(lessons):
            try:
                answers += _changed(store, run, max_classes)
            except Exception as error:  # the answer of this run alone: what the runs before it did is done
                answers += [error] * len(run)
        return answers

    return Worker("learn", work, waiting=waiting, together=together)


def _changed(store: Store, run: list[Lesson], max_classes: int) -> list[Receipt | Exception]:
    if run[0].whole is not None:
        return [store.answered(run[0].key) or run[0].whole(store)]
    return _forget(store, run[0]) if run[0].images is None else _learn(store, run, max_classes)


def _runs(lessons: list[Lesson]) -> list[list[Lesson]]:
    """Consecutive learnings together, each forgetting alone, in order; a key that comes again starts a new run."""
    runs: list[list[Lesson]] = []
    for lesson in lessons:
        together = runs and lesson.images is not None and runs[-1][-1].images is not None
        again = runs and lesson.key is not None and any(_same_key(lesson, other) for other in runs[-1])
        if together and not again:
            runs[-1].append(lesson)
        else:
            runs.append([lesson])
    return runs


def _same_key(lesson: Lesson, other: Lesson) -> bool:
    return lesson.key is not None and other.key is not None and lesson.key.key == other.key.key


def _forget(store: Store, lesson: Lesson) -> list[Receipt | Exception]:
    try:
        return [store.answered(lesson.key) or store.forget(lesson.name, lesson.key)]
    except (KeyError, OtherRequestError) as error:
        return [error]


def _learn(store: Store, run: list[Lesson], max_classes: int) -> list[Receipt | Exception]:
    known = set(store.model.class_names)
    answers: list[Receipt | Exception | None] = []
    taken: list[Lesson] = []
    for lesson in run:
        answer = _before_learning(store, lesson, known, max_classes)
        answers.append(answer)
        if answer is None:
            known.add(lesson.name)
            taken.append(lesson)
    pictures = [(lesson.images, lesson.name) for lesson in taken if lesson.images is not None]
    done = iter(store.learn(pictures, [lesson.key for lesson in taken]) if taken else [])
    return [next(done) if answer is None else answer for answer in answers]


def _before_learning(store: Store, lesson: Lesson, known: set[str], max_classes: int) -> Receipt | Exception | None:
    """The answer to a lesson that is not to be learned: done before, for another model, or too many classes."""
    try:
        if before := store.answered(lesson.key):
            return before
    except OtherRequestError as error:
        return error
    if lesson.frame not in (None, Frame.of(store.model)):
        return ReplacedError()
    if lesson.name not in known and len(known) >= max_classes:
        return FullError(f"the model has {len(known)} classes, the limit is {max_classes}")
    return None
