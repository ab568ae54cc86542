"""The contract of a learner as runnable checks, for our methods and for yours.

    from nocl.checks import check_learner
    check_learner("my_module:MyMethod")

Every method in ``METHODS`` passes all of them. They use simple images and a small network, and take seconds. A method
may declare smaller settings for them in ``check_params``. Checks of streams are in ``checks.streams``.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nocl.checks.everywhere import changed, checksum, place, prints
from nocl.checks.first_image import the_first_image_spoils_nothing
from nocl.checks.hoarding import find_image, image_shaped, reachable
from nocl.checks.kept import kept_says_what_is_stored
from nocl.checks.leaving import leaving
from nocl.checks.material import BASE_LABELS, NOVEL_LABELS, QUICK, SIDE, CheckError, build, easy_images, expect, split
from nocl.checks.streams import STREAM_CHECKS, check_stream, every_stream_is_learned_or_refused
from nocl.learner import Learner, NotFittedError
from nocl.methods import METHODS
from nocl.methods._saving import load, save
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON, Batch
from nocl.plumbing.workers import in_processes


def check_learner(method: str | type[Learner], **params: JSON) -> list[str]:
    """Run every check; raise one error that lists all that failed. Returns the names of the checks."""
    cls = by_name(method, METHODS, "method") if isinstance(method, str) else method
    outcomes = each_check(cls, params)
    failures = [f"{name}: {type(error).__name__}: {error}" for name, error in outcomes if error is not None]
    if failures:
        raise CheckError(f"{cls.__name__} breaks {len(failures)} of {len(LEARNER_CHECKS)}:\n" + "\n".join(failures))
    return list(LEARNER_CHECKS)


def each_check(cls: type[Learner], params: dict[str, JSON]) -> Iterator[tuple[str, Exception | None]]:
    """Run the checks one after the other; yields the name of each and its error, if any."""
    for name, check in LEARNER_CHECKS.items():
        try:
            check(cls, params)
            yield name, None
        except Exception as error:  # a method may raise anything; all failures are reported together
            yield name, error


# --- the material ---------------------------------------------------------------------------------------------------


def fitted(cls: type[Learner], params: dict[str, JSON]) -> Learner:
    """A learner after its base session; trained once, then copied."""
    return copy.deepcopy(_fitted_once(cls, json.dumps(params)))  # type: ignore[arg-type]


@cache
def _fitted_once(cls: type[Learner], params: str) -> Learner:
    return build(cls, json.loads(params)).fit_base(split(base_session(), 10))


def base_session() -> Batch:
    """The images of the base session of :func:`fitted`."""
    return easy_images(BASE_LABELS, 20, seed=1)


def novel(n: int = 10, size: int = 10, seed: int = 2) -> list[Batch]:
    """A session of the novel labels."""
    return split(easy_images(NOVEL_LABELS, n, seed), size)


def teach(learner: Learner, batches: Iterable[Batch]) -> Learner:
    """One session."""
    for x, y in batches:
        learner.observe(x, y)
    learner.end_session()
    return learner


def differences(a: Learner, b: Learner) -> list[str]:
    """Names of the state's tensors that are not the same, bit for bit."""
    left, right = a.state_dict(), b.state_dict()
    return [
        name
        for name in {**left, **right}
        if name not in left or name not in right or not torch.equal(left[name], right[name])
    ]


def expect_same_state(a: Learner, b: Learner, when: str) -> None:
    """Fail the check, naming the tensors that differ."""
    names = differences(a, b)
    expect(not names, f"{when}: {len(names)} tensors differ, {', '.join(names[:4])}")


# --- learners -------------------------------------------------------------------------------------------------------


def parameters_round_trip(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Parameters are the same after JSON and ``clone``; a clone has learned nothing."""
    learner = build(cls, params)
    again = cls(**learner.get_params())  # type: ignore[arg-type]
    expect(again.get_params() == learner.get_params(), "a learner built from get_params() has other parameters")
    copied = fitted(cls, params).clone(seed=5)
    expect(
        copied.seed == 5 and not len(copied.classes_),
        "clone(seed=5) must take the change and nothing learned",
    )
    defaults = cls().get_params()
    for name, value in learner.get_params().items():
        expect(name in {*QUICK, *cls.check_params, *params} or value == defaults[name], f"{name} changed")


def global_generator_untouched(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Nothing draws from torch's or numpy's global generator."""
    torch.manual_seed(123)
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    before = torch.get_rng_state()
    learner = build(cls, params)
    learner.fit_base(split(easy_images(BASE_LABELS, 4, seed=1), 8))
    teach(learner, novel(4)).predict(novel(2)[0].x)
    expect(torch.equal(before, torch.get_rng_state()), "torch's global generator was used")
    numpy_after = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
    expect(bool((numpy_before == numpy_after).all()), "numpy's global generator was used")


def same_seed_same_result(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Two learners of one seed end in the same state, bit for bit."""
    ends = []
    for _ in range(2):
        learner = build(cls, params)
        learner.fit_base(split(easy_images(BASE_LABELS, 4, seed=1), 8))
        ends.append(teach(learner, novel(4)))
    expect_same_state(ends[0], ends[1], "two runs with the same seed")


def predict_before_learning_raises(cls: type[Learner], params: dict[str, JSON]) -> None:
    """``predict`` before learning raises NotFittedError."""
    try:
        build(cls, params).predict(novel(1)[0].x)
    except NotFittedError:
        return
    raise CheckError("predict before learning must raise NotFittedError")


def predict_changes_nothing(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Predicting changes neither state nor gradients, and gives the same result twice."""
    learner = teach(fitted(cls, params), novel())
    before = copy.deepcopy(learner)
    x = easy_images(BASE_LABELS, 3, seed=9).x
    first, second = learner.decision_function(x), learner.decision_function(x)
    expect(torch.equal(first, second), "the second answer differs from the first")
    expect(not first.requires_grad, "decision_function must not track gradients")
    expect_same_state(before, learner, "decision_function changed the state")


def classes_grow_in_order(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Every class met appears once in ``classes_``; old columns stay where they are."""
    learner = fitted(cls, params)
    before = learner.classes_.tolist()
    expect(set(before) == set(BASE_LABELS), f"after the base session classes_ is {before}")
    expect(int(learner.n_base_) == len(BASE_LABELS), f"n_base_ is {int(learner.n_base_)}")
    for x, y in novel():
        learner.observe(x, y)
    after = learner.classes_.tolist()
    expect(after[: len(before)] == before, "old classes moved to other columns")
    expect(sorted(after) == sorted({*BASE_LABELS, *NOVEL_LABELS}), f"classes_ is {after}")
    learner.end_session()
    scores = learner.decision_function(novel(3)[0].x)
    expect(scores.shape[1] == len(after), f"{scores.shape[1]} columns for {len(after)} classes")
    expect(bool(torch.isfinite(scores).all()), "a class that was met has a score that is not finite")


def batching_does_not_matter(cls: type[Learner], params: dict[str, JSON]) -> None:
    """An image's scores do not depend on the other images of its batch."""
    learner = teach(fitted(cls, params), novel())
    x = easy_images((*BASE_LABELS, *NOVEL_LABELS), 2, seed=9).x
    whole = learner.decision_function(x)
    parts = torch.cat([learner.decision_function(part) for part in x.split(5)])
    scale = float(whole.abs().max()) + 1e-6
    expect(bool(((whole - parts).abs() <= 1e-3 * scale).all()), "scores depend on the batch an image is in")


def inputs_untouched(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Images and labels given to a learner are neither changed nor kept by reference."""
    learner = fitted(cls, params)
    batches = novel()
    copies = [Batch(x.clone(), y.clone()) for x, y in batches]
    teach(learner, batches)
    for (x, y), (x0, y0) in zip(batches, copies):
        expect(torch.equal(x, x0) and torch.equal(y, y0), "observe changed its input")
    before = learner.decision_function(easy_images(NOVEL_LABELS, 2, seed=9).x)
    for x, y in batches:
        x.fill_(255)
        y.fill_(-1)
    after = learner.decision_function(easy_images(NOVEL_LABELS, 2, seed=9).x)
    expect(torch.equal(before, after), "the learner kept a reference to its input")


def state_stops_growing(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Once classes stop arriving the state keeps its size, whatever the number of samples."""
    learner = teach(fitted(cls, params), novel())
    before = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    teach(learner, novel(20, seed=3))
    after = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    grown = [name for name in after if after[name] != before.get(name)]
    expect(not grown, f"grew with the number of samples: {', '.join(grown)}")


def no_image_is_kept(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Unless ``stores_exemplars``, no image is in the learner, elsewhere in the process, or on its way out of it."""
    if cls.stores_exemplars:
        return
    learner = fitted(cls, params)
    where = find_image(base_session().x, reachable(learner))
    expect(where is None, f"an image of the base session lies in {where}; remove it, or declare stores_exemplars")
    before, batches = prints(), novel(20, seed=31)
    with leaving() as said:
        teach(learner, [Batch(x.clone(), y.clone()) for x, y in batches])  # ours stay apart from what it may keep
    shaped = image_shaped(learner, SIDE)
    expect(shaped is None, str(shaped))
    images = torch.cat([x for x, _ in batches])
    own = {tensor.untyped_storage().data_ptr() for tensor in (images, *(x for x, _ in batches))}
    elsewhere, known = list(changed(before, own)), set(before.values())  # before the search makes arrays of its own
    new = [(name, values) for name, values in reachable(learner) if checksum(values) not in known]
    where = find_image(images, new)
    if where is None and (holder := find_image(images, elsewhere)) is not None:
        where = place(holder)
    expect(where is None, f"an image that was learned lies in {where}")
    expect(not said, f"while it learned, something left the process: {', '.join(said[:3])}")


def state_is_all_there_is(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Loaded in a new process from its saved state alone, a learner predicts the same."""
    learner = teach(fitted(cls, params), novel())
    x = easy_images((*BASE_LABELS, *NOVEL_LABELS), 2, seed=9).x
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        save(learner, path)
        said = list(in_processes([x.numpy()], _prepare_answers, path, workers=1, tries=1))
    answer = said[-1].value
    own = learner.decision_function(x).numpy()
    same = np.allclose(answer, own, rtol=1e-4, atol=1e-5)  # the number of threads may differ, and with it rounding
    expect(same, "a fresh process answers otherwise")


def _prepare_answers(path: Path) -> Callable[[Any, Callable[[Any], None]], Any]:
    """In the new process: load the learner and return a function from images to scores."""
    learner = load(path, trust=True)
    return lambda x, _: learner.decision_function(torch.from_numpy(x)).numpy()


def small_batches_work(cls: type[Learner], params: dict[str, JSON]) -> None:
    """A batch of one image, a batch of one class, a class of one image."""
    learner = fitted(cls, params)
    x, y = easy_images((12,), 1, seed=2)
    learner.observe(x, y)
    learner.end_session()
    expect(bool(torch.isfinite(learner.decision_function(x)).all()), "scores are not finite after one image")
    teach(learner, split(easy_images((5,), 6, seed=2), 6))
    expect(bool(torch.isfinite(learner.decision_function(x)).all()), "scores are not finite after one class")


def end_session_twice(cls: type[Learner], params: dict[str, JSON]) -> None:
    """``end_session`` may be called again, and before anything was observed."""
    learner = fitted(cls, params)
    learner.end_session()
    teach(learner, novel()).end_session()
    expect(bool(torch.isfinite(learner.decision_function(novel(2)[0].x)).all()), "scores are not finite")


def interrupted_equals_uninterrupted(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Saving, loading and continuing gives the same bits as not stopping, also within a session."""
    straight = fitted(cls, params)
    batches = novel(15)
    with tempfile.TemporaryDirectory() as folder:
        broken = fitted(cls, params)
        for i, (x, y) in enumerate(batches):
            straight.observe(x, y)
            broken.observe(x, y)
            if i in (0, len(batches) - 1):
                save(broken, Path(folder) / "learner.safetensors")
                broken = load(Path(folder) / "learner.safetensors", trust=True)
        straight.end_session()
        broken.end_session()
        save(broken, Path(folder) / "learner.safetensors")
        broken = teach(load(Path(folder) / "learner.safetensors", trust=True), novel(5, seed=4))
    teach(straight, novel(5, seed=4))
    expect_same_state(straight, broken, "after save, load and continue")
    x = easy_images((*BASE_LABELS, *NOVEL_LABELS), 2, seed=9).x
    expect(torch.equal(straight.decision_function(x), broken.decision_function(x)), "the scores differ")


def bad_input_is_refused(cls: type[Learner], params: dict[str, JSON]) -> None:
    """Images of another type or size give an error and change nothing."""
    learner = fitted(cls, params)
    before = copy.deepcopy(learner)
    y = torch.zeros(2, dtype=torch.int64)
    for x in (torch.rand(2, 3, SIDE, SIDE), torch.zeros(2, 3, SIDE, SIDE // 2, dtype=torch.uint8)):
        try:
            learner.observe(x, y)
        except ValueError:
            continue
        raise CheckError(f"images {x.dtype} {list(x.shape)} were accepted")
    expect_same_state(before, learner, "a refused batch changed the state")


def it_learns(cls: type[Learner], params: dict[str, JSON]) -> None:
    """On simple images, accuracy is far above chance."""
    learner = teach(fitted(cls, params), novel(20))
    x, y = easy_images((*BASE_LABELS, *NOVEL_LABELS), 10, seed=9)
    accuracy = float((learner.predict(x) == y).double().mean())
    chance = 1 / len({*BASE_LABELS, *NOVEL_LABELS})
    expect(accuracy > 1.8 * chance, f"accuracy {accuracy:.2f} where chance is {chance:.2f}")


LEARNER_CHECKS: dict[str, Callable[[type[Learner], dict[str, JSON]], None]] = {
    check.__name__: check
    for check in (
        parameters_round_trip,
        global_generator_untouched,
        same_seed_same_result,
        predict_before_learning_raises,
        predict_changes_nothing,
        classes_grow_in_order,
        batching_does_not_matter,
        inputs_untouched,
        state_stops_growing,
        no_image_is_kept,
        state_is_all_there_is,
        small_batches_work,
        end_session_twice,
        interrupted_equals_uninterrupted,
        bad_input_is_refused,
        it_learns,
        the_first_image_spoils_nothing,
        kept_says_what_is_stored,
        every_stream_is_learned_or_refused,
    )
}


__all__ = [
    "BASE_LABELS",
    "LEARNER_CHECKS",
    "NOVEL_LABELS",
    "QUICK",
    "SIDE",
    "STREAM_CHECKS",
    "CheckError",
    "build",
    "check_learner",
    "check_stream",
    "each_check",
    "easy_images",
    "expect",
    "split",
]
