"""START HERE: the whole protocol on one page. A learner meets a stream; what comes out is a RunResult.

The base session may be repeated; after it every batch is handed over once. After each session, and in the middle of
it if asked for, the learner is tested on all classes met so far, without being told which session they came from. With
a ``folder``, everything is written down after each session and a run that was killed goes on there, to the same result.
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
from nocl.metrics import Exam, assess
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON
from nocl.results import RunResult, environment, peak_memory
from nocl.streams import Stream

STATE, RESULT = "state.safetensors", "result.json"


class ResumeError(ValueError):
    """A folder that holds another run than the one asked for."""


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

    A learner that comes with its base session behind it is not given it again. ``test_every`` so many images after the
    base session the learner is tested in the middle of learning (0: only at the end of sessions); that time is not
    counted as learning. A learner that does not depend on batches is tested at exactly that image, others at the end
    of its batch.
    ``folder`` keeps the state and the result so far, and is where a run continues; ``cache`` keeps trained base
    networks; ``on_session`` is called with the result so far after each session; ``test_batch`` images are answered at
    once, which changes the speed alone.
    """
    where = environment(learner.device)  # now: a checkout may move on while the run lasts
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
        if stream.base.classes:  # without a base session there is nothing to keep yet
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
    """Test on everything seen so far and add one row to the result."""
    session = 0 if before is None else len(before.accuracy)
    start = perf_counter()
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
    )


def _params(learner: Learner) -> dict[str, JSON]:
    """The parameters, a given network by its file's name: where it lies is not part of a result, its hash is."""
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
    """The result so far, with ``learner`` brought to that state; None where nothing was written yet."""
    if folder is None or not (folder / STATE).exists():
        return None
    own = (name_of(learner), *texts(learner.get_params()))
    saved, extra = load_with_extra(folder / STATE, trust=own)
    result = RunResult.from_json(extra.get("result"))
    wanted = (name_of(learner), _params(learner), json.loads(json.dumps(stream.describe())))
    if (result.method, result.params, result.stream) != wanted:
        raise ResumeError(f"{folder} holds another run ({result.method}); choose another folder or delete it")
    tested = 0 if result.anytime is None else result.anytime.every
    if tested != test_every and len(result.accuracy) > 1:
        raise ResumeError(f"{folder} holds a run tested every {tested} images, not {test_every}; choose another folder")
    learner.load_state_dict(saved.state_dict())
    learner.base_, learner.log_ = saved.base_, saved.log_
    return result


class _Callable(ModuleType):
    """Makes ``nocl.run`` both this module and the function: the import system puts the module in its place."""

    __call__ = staticmethod(run)
    __signature__ = inspect.signature(run)


sys.modules[__name__].__class__ = _Callable
