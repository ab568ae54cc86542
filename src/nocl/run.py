"""START HERE: the whole protocol on one page. A learner learns a stream; the result is a RunResult.

The base session may be repeated; after it the learner gets every batch once. After each session, and within sessions
if requested, the learner is tested on all classes seen so far, without knowing their sessions. With a ``folder``,
everything is saved after each session, and an interrupted run continues there with the same result.
"""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from nocl.learner import FrozenLearner, Learner, UnsupportedError
from nocl.methods import name_of
from nocl.methods._saving import load_with_extra, save, texts
from nocl.metrics import Exam, answers_row, assess
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON
from nocl.results import RunResult, environment, peak_memory
from nocl.streams import Stream

STATE, RESULT = "state.safetensors", "result.json"


class ResumeError(ValueError):
    """The folder contains a different run."""


def run(
    learner: Learner,
    stream: Stream,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    on_session: Callable[[RunResult], None] | None = None,
    test_batch: int = 128,
    test_every: int = 0,
) -> RunResult:
    """Run the protocol.

    A learner that has learned its base session already does not get it again. After the base session the learner is
    also tested after every ``test_every`` images (0: only at the end of sessions); the time of tests does not count as
    learning. A learner that does not depend on batches is tested at exactly that image, others at the end of its batch.
    State and result so far are saved in ``folder``, where an interrupted run continues. Trained base networks are saved
    in ``cache``. ``on_session`` is called with the result so far after each session. ``test_batch`` is the batch size
    of tests and changes the speed only.
    """
    where = environment(learner.device)  # before the run: the checkout may change during it
    if isinstance(learner, FrozenLearner):
        where["engine"] = learner.engine.name
    if learner.uses_boundaries and not stream.boundaries:
        raise UnsupportedError(learner.without_boundaries())
    result = _continue(learner, stream, folder, test_every)
    if result is None:
        start = perf_counter()
        if not stream.base.classes:
            learner.skip_base()
        elif not int(learner.n_base_):
            learner.fit_base(stream.base, workdir=cache)
        result = _record(None, learner, stream, perf_counter() - start, where, test_batch)
        if stream.base.classes:  # without a base session there is nothing to save yet
            _keep(learner, result, folder, on_session)
    for session in stream:
        if session.index < len(result.accuracy):
            continue  # learned before the run was interrupted
        cut = not learner.depends_on_batching
        exam = Exam(learner, stream, session.index, result.anytime, every=test_every, batch_size=test_batch, cut=cut)
        start = perf_counter()
        batches = track(session, f"session {session.index}/{len(stream)}", following=len(stream) - session.index)
        for x, y in (part for batch in batches for part in exam.parts(batch)):
            learner.observe(x, y)
            exam.after(y)
        if stream.boundaries:
            learner.end_session()
        seconds = perf_counter() - start - exam.seconds
        result = _record(result, learner, stream, seconds, where, test_batch, exam)
        _keep(learner, result, folder, on_session)
    return result


def _record(
    before: RunResult | None, learner: Learner, stream: Stream, seconds: float, where: dict[str, JSON],
    test_batch: int, exam: Exam | None = None,
) -> RunResult:  # fmt: skip
    """Test on all classes seen so far and add one row to the result."""
    session = 0 if before is None else len(before.accuracy)
    start = perf_counter()
    idle = not stream.boundaries or type(learner).end_session is Learner.end_session
    if exam is not None and exam.answers is not None and idle:  # nothing has changed since that test
        row = answers_row(*exam.answers, stream.blocks)
    else:
        row = assess(learner, stream.test_sets(session), stream.blocks, test_batch)
    test_seconds = perf_counter() - start + (0.0 if exam is None else exam.seconds)

    def grown(name: str, value: Any) -> tuple[Any, ...]:
        return (*getattr(before, name, ()), value)

    return RunResult(
        method=name_of(learner),
        params=_params(learner),
        tags={"stores_exemplars": learner.stores_exemplars, "uses_boundaries": learner.uses_boundaries},
        stream=stream.describe(),
        seed=learner.seed,
        session_classes=stream.blocks,
        accuracy=grown("accuracy", row.sessions),
        class_accuracy=grown("class_accuracy", row.classes),
        confusion=grown("confusion", row.confusion),
        seconds=grown("seconds", seconds),
        test_seconds=grown("test_seconds", test_seconds),
        peak_memory=peak_memory(),
        state_bytes=learner.state_bytes(),
        base=learner.base_,
        environment=where,
        log=learner.log_,
        finished=session == len(stream),
        anytime=None if exam is None else exam.found,
        scoring=learner.scoring,
    )


def _params(learner: Learner) -> dict[str, JSON]:
    """The parameters; of a weights file the name only, because a result has its hash and not its place."""
    params = learner.get_params()
    return {**params, "weights": Path(learner.weights).name if learner.weights else None}


def _keep(
    learner: Learner, result: RunResult, folder: Path | None, on_session: Callable[[RunResult], None] | None
) -> None:
    if folder is not None:
        save(learner, folder / STATE, {"result": result.to_json()})  # one file, so both are of the same session
        result.save(folder / RESULT)
    if on_session is not None:
        on_session(result)


def _continue(learner: Learner, stream: Stream, folder: Path | None, test_every: int) -> RunResult | None:
    """Load the saved state into ``learner`` and return the result so far; None if nothing was saved."""
    if folder is None or not (folder / STATE).exists():
        return None
    own = (name_of(learner), *texts(learner.get_params()))
    saved, extra = load_with_extra(folder / STATE, trust=own)
    result = RunResult.from_json(extra.get("result"))
    wanted = (name_of(learner), _params(learner), json.loads(json.dumps(stream.describe())))
    if (result.method, result.params, result.stream) != wanted:
        raise ResumeError(f"{folder} holds another run ({result.method}); choose another folder or delete it")
    if result.scoring != learner.scoring:
        raise ResumeError(
            f"{folder} was begun when {result.method} scored otherwise; choose another folder or delete it"
        )
    tested = 0 if result.anytime is None else result.anytime.every
    if tested != test_every and len(result.accuracy) > 1:
        raise ResumeError(f"{folder} holds a run tested every {tested} images, not {test_every}; choose another folder")
    learner.load_state_dict(saved.state_dict())
    learner.base_, learner.log_ = saved.base_, saved.log_
    return result


class _Callable(ModuleType):
    """Makes this module callable: ``nocl.run`` is the module and works as the function too."""

    __call__ = staticmethod(run)
    __signature__ = inspect.signature(run)


sys.modules[__name__].__class__ = _Callable
