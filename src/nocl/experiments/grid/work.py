"""One task of a grid, done in the process of an engine, and its progress events."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from filelock import FileLock

from nocl.experiments.job import Job
from nocl.plumbing.progress import reporting
from nocl.results import RunResult
from nocl.run import RESULT, STATE

ERROR = "error.txt"
BEFORE = "result-of-other-defaults.json"
LOGS = ("tensorboard",)
SECONDS_BETWEEN = 0.3  # events of progress


@dataclass(frozen=True)
class Task:
    """A job with its number in the grid, its folder and its share of the machine."""

    number: int
    job: Job
    folder: Path
    cache: Path
    threads: int = 1
    log: str | None = None
    keep_state: bool = False


class Event(NamedTuple):
    """What happened to a task; ``failed`` carries the traceback."""

    number: int
    kind: Literal["cached", "started", "progress", "done", "failed"]
    text: str = ""
    done: int = 0
    total: int | None = None


Say = Callable[[Event], None]


def perform(task: Task, say: Say) -> RunResult:
    """Run the job in its folder, continuing an earlier attempt; two processes never use one folder."""
    torch.set_num_threads(task.threads)
    task.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(task.folder / "lock"), reporting(Sender(task.number, say)):
        result = finished(task.folder, task.job)
        if result is None:
            _set_aside(task)
            with curves(task) as write:
                result = task.job.run(folder=task.folder, cache=task.cache, on_session=write)
        (task.folder / ERROR).unlink(missing_ok=True)
        if not task.keep_state:
            (task.folder / STATE).unlink(missing_ok=True)
    return result


def finished(folder: Path, job: Job | None = None) -> RunResult | None:
    """The result in that folder if the run is over; with a job, if the method still has the defaults of then."""
    path = folder / RESULT
    result = RunResult.load(path) if path.exists() else None
    if result is None or not result.finished or (job is not None and job.outdated(result)):
        return None
    return result


def _set_aside(task: Task) -> None:
    """Keep a result that was made with other defaults under another name: it is not what this job would measure."""
    if finished(task.folder) is not None:
        (task.folder / RESULT).rename(task.folder / BEFORE)
        (task.folder / STATE).unlink(missing_ok=True)


class Sender:
    """Progress of a run as events, not more than a few a second."""

    def __init__(self, number: int, say: Say) -> None:
        self._number, self._say, self._last = number, say, 0.0
        self._open: list[str] = []

    def start(self, description: str, total: int | None, following: int = 0) -> int:
        self._open.append(description)
        self._tell(len(self._open) - 1, 0, total)
        return len(self._open) - 1

    def show(self, task: int, done: int, total: int | None) -> None:
        if time.monotonic() - self._last >= SECONDS_BETWEEN:
            self._tell(task, done, total)

    def stop(self, task: int, note: str = "") -> None:
        """No event: the next task reports itself."""

    def rename(self, task: int, description: str) -> None:
        self._open[task] = description

    def _tell(self, task: int, done: int, total: int | None) -> None:
        self._last = time.monotonic()
        self._say(Event(self._number, "progress", self._open[task], done, total))


@contextmanager
def curves(task: Task) -> Iterator[Callable[[RunResult], None]]:
    """Write Acc, base, novel, HM and time of each session, and the base loss, to the task's log."""
    if task.log is None:
        yield lambda result: None
        return
    if task.log not in LOGS:
        raise ValueError(f"log {task.log!r}: choose {' or '.join(LOGS)}")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--log tensorboard needs the extra: pip install 'nocl[tensorboard]'") from error

    writer = SummaryWriter(str(task.folder / "tensorboard"))

    def write(result: RunResult) -> None:
        session = len(result.accuracy) - 1
        values = {"seconds": result.seconds[-1], **result.last._asdict()}
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"session/{name}", value, session)
        losses = result.log.get("base_loss")
        if session == 0 and isinstance(losses, list):
            for epoch, loss in enumerate(losses):
                writer.add_scalar("base/loss", loss, epoch)
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
