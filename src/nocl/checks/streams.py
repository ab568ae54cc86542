"""Checks of streams, and of a method on every kind of stream."""

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import cache

import torch
from torch import Tensor

from nocl.arrivals import STREAMS
from nocl.checks.material import QUICK, CheckError, build, easy_images, expect
from nocl.data import Dataset, ImageSet
from nocl.learner import Learner, UnsupportedError
from nocl.plumbing.types import JSON, Batch
from nocl.streams import Stream, StreamConsumedError, arrange

CLASSES, BASE = 5, 60  # classes of the streams a method is checked on, and percent of them in the base session


def check_stream(make: Callable[[], Stream]) -> list[str]:
    """Run every check of a stream; ``make`` builds a new one for each."""
    for check in STREAM_CHECKS.values():
        check(make)
    return list(STREAM_CHECKS)


def _contents(stream: Stream) -> list[list[Batch]]:
    return [list(stream.base), *[list(session) for session in stream]]


def same_seed_same_order(make: Callable[[], Stream]) -> None:
    """Two streams built alike deliver the same batches."""
    first, second = _contents(make()), _contents(make())
    for batches, others in zip(first, second, strict=True):
        for (x, y), (x2, y2) in zip(batches, others, strict=True):
            expect(torch.equal(x, x2) and torch.equal(y, y2), "the same seed gave another order")


def every_image_once(make: Callable[[], Stream]) -> None:
    """No training image comes twice, and every session has as many as it says, the last short batch included."""
    stream = make()
    contents = _contents(stream)
    got = Counter(_fingerprint(x, y) for batches in contents for batch in batches for x, y in zip(*batch))
    there = Counter(_fingerprint(x, y) for batch in stream.data.train.batches() for x, y in zip(*batch))
    expect(not got - there, f"{sum((got - there).values())} images were delivered twice, or are not in the data set")
    sizes = [sum(len(y) for _, y in batches) for batches in contents]
    wanted = [sum(len(y) for _, y in stream.base.epoch(0)), *[session.n_images for session in stream]]
    expect(sizes == wanted, f"sessions delivered {sizes} images and announced {wanted}")


def classes_are_as_announced(make: Callable[[], Stream]) -> None:
    """Labels belong to the session's classes; a block has those that no earlier session had."""
    stream = make()
    announced = [stream.base.classes, *[session.classes for session in stream]]
    seen: set[int] = set()
    for classes, block, batches in zip(announced, stream.blocks, _contents(stream), strict=True):
        labels = {int(label) for _, y in batches for label in y}
        expect(labels == set(classes), f"a session of {sorted(classes)} delivered {sorted(labels)}")
        expect(set(block) == labels - seen, f"a session brings {sorted(labels - seen)} for the first time, not {block}")
        seen |= labels
    expect(seen == set(range(stream.data.n_classes)), "some classes never come")


def train_and_test_are_disjoint(make: Callable[[], Stream]) -> None:
    """No test image, pixel for pixel, is in the training stream under the same label."""
    stream = make()
    train = {_fingerprint(x, y) for batch in stream.data.train.batches() for x, y in zip(batch.x, batch.y)}
    for images in stream.test_sets(len(stream)):
        for batch in images.batches():
            for x, y in zip(batch.x, batch.y):
                expect(
                    _fingerprint(x, y) not in train,
                    f"a test image of class {int(y)} is also a training image",
                )


def second_pass_is_refused(make: Callable[[], Stream]) -> None:
    """A session can be iterated once; the base session again and again, in another order."""
    stream = make()
    first, second = ([label for _, y in stream.base for label in y.tolist()] for _ in range(2))
    expect(len(first) < 5 or first != second, "two base epochs have the same order")
    for session in stream:
        list(session)
        try:
            iter(session)
        except StreamConsumedError:
            continue
        raise CheckError(f"session {session.index} allowed a second pass")


def _fingerprint(x: Tensor, y: Tensor) -> int:
    return hash((x.numpy().tobytes(), int(y)))


STREAM_CHECKS: dict[str, Callable[[Callable[[], Stream]], None]] = {
    check.__name__: check
    for check in (
        same_seed_same_order,
        every_image_once,
        classes_are_as_announced,
        train_and_test_are_disjoint,
        second_pass_is_refused,
    )
}


# --- a method on every stream ---------------------------------------------------------------------------------------


def every_stream_is_learned_or_refused(cls: type[Learner], params: dict[str, JSON]) -> None:
    """On every kind of stream a method learns all classes and can predict at any time, or gives a reason."""
    learned = []
    for name in STREAMS:
        stream = arrange(_data(), _text(name), batch_size=4, seed=1)
        learner = copy.deepcopy(_after_base(cls, json.dumps(params)))  # type: ignore[arg-type]
        if learner.uses_boundaries and not stream.boundaries:
            expect("session" in learner.without_boundaries(), "the reason for refusing a stream must name its sessions")
            continue
        _learn(learner, stream)
        learned.append(name)
        missing = sorted(set(range(CLASSES)) - set(learner.classes_.tolist()))
        expect(not missing, f"{name}: classes {missing} came and are not in classes_")
    expect(set(learned) >= {name for name, plan in STREAMS.items() if plan.boundaries}, f"only {learned} were learned")
    _without_base(cls, params)


def _without_base(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Without a base session: works on a given network, or raises an error with the reason."""
    learner = build(cls, params)
    try:
        learner.skip_base()
    except UnsupportedError as error:
        expect("base session" in str(error), f"the refusal must say that there is no base session: {error}")
    else:
        raise CheckError("a network that was never trained was accepted in place of a base session")
    if not learner.needs_base:
        _learn(learner, arrange(_data(), "disjoint:base=0,sessions=2", batch_size=4, seed=1))


def _learn(learner: Learner, stream: Stream) -> None:
    """Learn all sessions, with a prediction in the middle."""
    x = easy_images(range(CLASSES), 1, seed=9).x
    for session in stream:
        for index, (images, y) in enumerate(session):
            learner.observe(images, y)
            if index == 1:
                expect(bool(torch.isfinite(learner.decision_function(x)).all()), "scores are not finite")
        if stream.boundaries:
            learner.end_session()
    expect(bool(torch.isfinite(learner.decision_function(x)).all()), "scores are not finite at the end")


def _text(name: str) -> str:
    """The stream of that name, small enough for the few classes here."""
    sessions = "sessions" in {field.name for field in fields(STREAMS[name])}
    return f"{name}:base={BASE}" + ",sessions=2" * sessions


@cache
def _data() -> Dataset:
    train, test = easy_images(range(CLASSES), 3, seed=1), easy_images(range(CLASSES), 1, seed=2)
    sets = [ImageSet.of(batch.x.numpy(), batch.y.numpy()) for batch in (train, test)]
    return Dataset("easy", sets[0], sets[1], tuple(str(label) for label in range(CLASSES)))


@cache
def _after_base(cls: type[Learner], params: str) -> Learner:
    recipe = {"recipe": {**QUICK["recipe"], "epochs": 1}}  # type: ignore[dict-item]
    learner = build(cls, {**recipe, **json.loads(params)})
    return learner.fit_base(arrange(_data(), f"disjoint:base={BASE},sessions=2", base_batch_size=4).base)
