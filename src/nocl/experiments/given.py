"""An experiment on a given network: methods on its frozen features share them in the arena, the others run whole.

One network file belongs to one set of base classes. In the arena a further seed therefore permutes the classes that
come after the base; elsewhere a seed whose base classes are not the network's is left out.
"""

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from nocl.data import Dataset, load
from nocl.experiments.compare import Contender, Contest, Course, Heads, course, stages_of
from nocl.experiments.features import extract, trained_classes
from nocl.experiments.grid import Event, Outcome, finished, folder_of
from nocl.experiments.grid.work import Say, Sender
from nocl.experiments.job import Job
from nocl.experiments.paper.tables import Run
from nocl.methods import make
from nocl.plumbing.progress import reporting
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from nocl.run import RESULT
from nocl.streams import class_incremental

ARENA = "arena-"


@dataclass(frozen=True)
class Split:
    """Who runs where; ``left_out`` are runs whose class order does not fit the network."""

    arena: list[Run] = field(default_factory=list)
    grid: list[Run] = field(default_factory=list)
    left_out: list[Run] = field(default_factory=list)


def split(runs: Sequence[Run], checkpoint: Path, *, allow_leak: bool = False) -> Split:
    """Sort the runs. A partition whose novel classes the network knows is refused here, before anything has run.

    With ``allow_leak`` the arena runs it; every result then counts the classes that leaked.
    """
    trained = trained_classes(checkpoint)
    found = Split()
    for run in runs:
        if _only_features(run.job):
            _course(run.job, trained, allow_leak)
            found.arena.append(run)
        elif trained is None or set(trained) <= set(_base_classes(run.job)):
            found.grid.append(run)
        else:
            found.left_out.append(run)
    return found


def arena_folder(job: Job, out: Path) -> Path:
    """Where the result of a run in the arena lies: not where the grid looks, for a seed means something else here."""
    folder = folder_of(job, out)
    return folder.with_name(ARENA + folder.name)


def run_arena(runs: Sequence[Run], checkpoint: Path, out: Path, cache: Path, say: Say) -> list[Outcome]:
    """Run what has no result yet, method after method; a failure is reported and the next method goes on.

    Event numbers are positions in ``runs``; ``cache`` keeps the features.
    """
    numbers = {run.job.digest(): number for number, run in enumerate(runs)}
    heads = Heads()
    errors: dict[str, str] = {}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = run.job.with_changes(seed=0).digest()
        groups.setdefault(same, []).append(run)
    for some in groups.values():
        left = [run for run in some if finished(arena_folder(run.job, out)) is None]
        for run in some:
            say(Event(numbers[run.job.digest()], "started" if run in left else "cached"))
        try:
            _run_method(left, checkpoint, out, cache, say, numbers, heads)
        except Exception:  # whatever a method raises must not stop the others: it is reported with its traceback
            for run in left:
                if finished(arena_folder(run.job, out)) is None:
                    errors[run.job.digest()] = traceback.format_exc()
                    say(Event(numbers[run.job.digest()], "failed", errors[run.job.digest()]))
    return [_outcome(run.job, out, errors.get(run.job.digest())) for run in runs]


def _run_method(
    runs: Sequence[Run], checkpoint: Path, out: Path, place: Path, say: Say, numbers: dict[str, int], heads: Heads
) -> None:
    """One method's missing orders; they share the base session."""
    if not runs:
        return
    first = runs[0].job
    contender, backbone = _contender(first), _backbone(first)
    by_seed = {run.job.seed: run.job for run in runs}
    with reporting(Sender(numbers[first.digest()], say)):
        data = _images(first)
        stages = stages_of(contender, backbone, data.image_size)
        features = extract(data, checkpoint, cache=place, backbone=backbone, stages=stages)
        contest = Contest(features, checkpoint, backbone, heads=heads)

        def keep(result: RunResult) -> None:
            job = by_seed[int(str(result.stream["order_seed"]))]
            job.save(arena_folder(job, out))
            result.save(arena_folder(job, out) / RESULT)
            say(Event(numbers[job.digest()], "done"))

        trained = trained_classes(checkpoint)
        contest.runs(contender, [_course(job, trained) for job in by_seed.values()], keep)


def _course(job: Job, trained: tuple[int, ...] | None, allow_leak: bool = True) -> Course:
    return course(job.partition, _images(job).n_classes, job.seed, trained, allow_leak=allow_leak)


def _base_classes(job: Job) -> tuple[int, ...]:
    return class_incremental(_images(job), partition=job.partition, order_seed=job.seed).blocks[0]


def _images(job: Job) -> Dataset:
    return _loaded(job.dataset, job.root, json.dumps(job.options, sort_keys=True))


@cache
def _loaded(dataset: str, root: str | None, options: str) -> Dataset:
    return load(dataset, root=None if root is None else Path(root), **json.loads(options))


def _only_features(job: Job) -> bool:
    """Whether the arena takes the method: it says so itself."""
    try:
        stages_of(_contender(job), _backbone(job), 32)
    except (TypeError, ValueError):
        return False
    return True


def _contender(job: Job) -> Contender:
    """The job's parameters; its recipe only where there are heads to train, for the network is given."""
    params: dict[str, JSON] = {k: v for k, v in job.chosen().items() if k not in ("weights", "backbone")}
    plain = {name: value for name, value in params.items() if name != "recipe"}
    return Contender(job.method, params if make(job.method, **params).needs_heads() else plain)


def _backbone(job: Job) -> str:
    return str(job.chosen().get("backbone", "reduced_resnet18"))


def _outcome(job: Job, out: Path, error: str | None) -> Outcome:
    folder = arena_folder(job, out)
    return Outcome(job, folder, None if error else finished(folder), error)
