"""Run many jobs: none twice, resumable after a crash, one failure does not stop the others, base networks shared.

The name of a run's folder is a hash of its job, so a finished run is found again. Base networks are in one cache; of
the jobs that need the same one, the first trains it while the others wait for its lock. The engine says where runs are
computed: in processes on this machine (``local``) or on a Ray cluster (``ray``); the results are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nocl.experiments.grid.local import run_locally
from nocl.experiments.grid.progress import Shown
from nocl.experiments.grid.work import ERROR, Event, Say, Task, finished
from nocl.experiments.job import Job
from nocl.plumbing.files import write_atomically
from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.plumbing.workers import cores
from nocl.results import RunResult

ENGINES = ("local", "ray")
RUNS, CACHE = "runs", "cache"

__all__ = ["ENGINES", "Engine", "Event", "Outcome", "cores", "finished", "folder_of", "run_grid"]


@dataclass(frozen=True)
class Engine:
    """Where runs are computed: ``workers`` at a time with ``threads`` each; by default all cores of this machine.

    For Ray: ``address`` of the cluster (none: a local one), GPUs of each run, and how often a lost run is tried again.
    """

    name: str = "local"
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise UnknownNameError(unknown(self.name, ENGINES, "engine"))
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def shares(self, n_runs: int) -> tuple[int, int]:
        """Workers and threads for so many runs.

        >>> Engine(workers=2, threads=3).shares(10), Engine(workers=4, threads=1).shares(2)
        ((2, 3), (2, 1))
        """
        available = cores()
        workers = self.workers or max(1, available // (self.threads or 1))
        workers = max(1, min(workers, n_runs))
        return workers, self.threads or max(1, available // workers)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: a result, or the traceback of its failure."""

    job: Job
    folder: Path
    result: RunResult | None
    error: str | None = None
    cached: bool = False


def folder_of(job: Job, out: Path) -> Path:
    """The folder of that job in the grid ``out``."""
    return out / RUNS / job.name()


def run_grid(
    jobs: Sequence[Job],
    out: Path,
    *,
    engine: Engine = Engine(),  # noqa: B008
    log: str | None = None,
    keep_states: bool = False,
    on_event: Say | None = None,
    names: Sequence[str] | None = None,
) -> list[Outcome]:
    """Do all jobs that have no finished result in ``out``; one outcome for each job, in their order.

    Event numbers are positions in ``jobs``. A job named twice is done once. ``keep_states`` keeps the learners of
    finished runs, which are large. Progress is reported under the jobs' ``names``.
    """
    shown = Shown([job.name() for job in jobs] if names is None else names)

    def say(event: Event) -> None:
        shown.hear(event)
        if on_event is not None:
            on_event(event)

    first = {job.digest(): number for number, job in reversed(list(enumerate(jobs)))}
    missing: list[int] = []
    for number in sorted(first.values()):
        if finished(folder_of(jobs[number], out), jobs[number]) is None:
            missing.append(number)
        else:
            say(Event(number, "cached"))
    workers, threads = engine.shares(len(missing))
    tasks = [Task(n, jobs[n], folder_of(jobs[n], out), out / CACHE, threads, log, keep_states) for n in missing]
    errors: dict[int, str] = {}

    def hear(event: Event) -> None:
        if event.kind == "failed":
            errors[event.number] = event.text
            text = event.text.encode()
            write_atomically(folder_of(jobs[event.number], out) / ERROR, lambda file: file.write(text))
        say(event)

    if tasks:
        _start(engine, tasks, hear, workers)
    return [_outcome(job, out, errors.get(first[job.digest()]), first[job.digest()] not in missing) for job in jobs]


def _start(engine: Engine, tasks: Sequence[Task], say: Say, workers: int) -> None:
    if engine.name == "local":
        run_locally(tasks, say, workers)
        return
    from nocl.experiments.grid.cluster import run_on_ray  # Ray is an extra

    run_on_ray(
        tasks, say, workers=workers, address=engine.address, gpus=engine.gpus, retries=engine.retries
    )  # fmt: skip


def _outcome(job: Job, out: Path, error: str | None, cached: bool) -> Outcome:
    folder = folder_of(job, out)
    return Outcome(job, folder, None if error else finished(folder), error, cached)
