"""Output of the command line: progress, and the table of a run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from nocl.plumbing.progress import reporting
from nocl.results import RunResult

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown_progress() -> Iterator[None]:
    """A bar with the time left on a terminal, plain lines in a log."""
    if not sys.stderr.isatty():
        with reporting(PlainLines()):
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, Speed(), TimeLeft(), console=Console(stderr=True), transient=True)
    with progress, reporting(Bar(progress)):
        yield


class TimeLeft(ProgressColumn):
    """The time left, including tasks of the same size that come after."""

    def render(self, task: Task) -> Text:
        if not task.speed or task.total is None:
            return Text("-:--:--", style="progress.remaining")
        to_do = task.total * (1 + int(task.fields.get("following", 0))) - task.completed
        return Text(str(timedelta(seconds=round(to_do / task.speed))), style="progress.remaining")


class Bar:
    """Progress as rich's bars, one for each running task."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, description: str, total: int | None, following: int = 0) -> int:
        return self._progress.add_task(description, total=total, following=following)

    def show(self, task: int, done: int, total: int | None) -> None:
        self._progress.update(TaskID(task), completed=done, total=total)

    def rename(self, task: int, description: str) -> None:
        self._progress.update(TaskID(task), description=description)

    def stop(self, task: int, note: str = "") -> None:
        if note:
            description = next(one.description for one in self._progress.tasks if one.id == task)
            self._progress.console.print(f"{description}: {note}", highlight=False, markup=False)
        self._progress.remove_task(TaskID(task))


@dataclass
class _Line:
    description: str
    total: int | None
    done: int
    begun: float
    said: float
    following: int


class PlainLines:
    """Progress as lines: one when work ends, and one every ten seconds in between."""

    def __init__(self) -> None:
        self._tasks: list[_Line] = []

    def start(self, description: str, total: int | None, following: int = 0) -> int:
        now = time.monotonic()
        self._tasks.append(_Line(description, total, 0, now, now, following))
        return len(self._tasks) - 1

    def show(self, task: int, done: int, total: int | None) -> None:
        line = self._tasks[task]
        line.done, line.total = done, total
        if time.monotonic() - line.said >= SECONDS_BETWEEN_LINES:
            line.said = time.monotonic()
            self._say(line)

    def rename(self, task: int, description: str) -> None:
        line = self._tasks[task]
        if line.description != description:  # the time left is estimated from this step alone
            line.description, line.begun = description, time.monotonic()

    def stop(self, task: int, note: str = "") -> None:
        self._say(self._tasks[task], note)

    def _say(self, line: _Line, note: str = "") -> None:
        elapsed = time.monotonic() - line.begun
        of = "" if line.total is None else f"/{line.total}"
        rate = f", {line.done / elapsed:,.0f}/s" if line.done > elapsed > 0 else ""
        left = ""
        if line.total and line.done and (to_do := line.total * (1 + line.following) - line.done):
            left = f", about {elapsed / line.done * to_do:.0f} s left"
        text = note or f"{line.done}{of} in {elapsed:.0f} s{rate}{left}"
        print(f"{line.description}: {text}", file=sys.stderr, flush=True)


def session_table(result: RunResult) -> Table:
    """Acc, base, novel and HM after each session."""
    stream = result.stream
    title = f"{result.method} on {stream['dataset']} {stream['partition']}, seed {result.seed}, in percent"
    table = Table(title=title)
    for name in ("session", "classes", "Acc", "base", "novel", "HM", "seconds"):
        table.add_column(name, justify="right")
    seen = 0
    for t, (scores, size, seconds) in enumerate(zip(result.curve, result.sizes, result.seconds)):
        seen += size
        if scores.acc is None:
            continue  # no base session
        values = [_percent(value) for value in (scores.acc, scores.base, scores.novel, scores.hm)]
        table.add_row("base" if t == 0 else str(t), str(seen), *values, f"{seconds:.1f}")
    if result.a_auc is not None:
        anytime = {
            "A_AUC": result.a_auc, "A_last": result.a_last, "A_avg": result.a_avg, "worst class": result.worst_class,
            "class forgetting": result.class_forgetting,
        }  # fmt: skip
        found = ", ".join(f"{name} {_percent(value)}" for name, value in anytime.items())
        table.caption = f"{found}; testing took {sum(result.test_seconds):.1f} seconds"
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


class Speed(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")
