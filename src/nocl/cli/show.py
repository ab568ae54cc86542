"""How the command line shows things: progress, and the table of a run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
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
    progress = Progress(*columns, Speed(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    with progress, reporting(Bar(progress)):
        yield


class Bar:
    """Progress as rich's bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, description: str, total: int | None) -> int:
        return self._progress.add_task(description, total=total)

    def advance(self, task: int, note: str = "") -> None:
        self._progress.advance(task)  # type: ignore[arg-type]

    def stop(self, task: int) -> None:
        self._progress.remove_task(task)  # type: ignore[arg-type]


class PlainLines:
    """Progress as lines: one when work ends, and one every ten seconds in between."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[float]] = {}
        self._names: dict[int, tuple[str, int | None]] = {}

    def start(self, description: str, total: int | None) -> int:
        number = len(self._names)
        now = time.monotonic()
        self._tasks[number], self._names[number] = [0.0, now, now], (description, total)
        return number

    def advance(self, task: int, note: str = "") -> None:
        state = self._tasks[task]
        state[0] += 1
        if time.monotonic() - state[2] >= SECONDS_BETWEEN_LINES:
            state[2] = time.monotonic()
            self._say(task)

    def stop(self, task: int) -> None:
        self._say(task)
        del self._tasks[task]

    def _say(self, task: int) -> None:
        done, begun, _ = self._tasks[task]
        description, total = self._names[task]
        elapsed = time.monotonic() - begun
        of = "" if total is None else f"/{total}"
        rate = f", {done / elapsed:,.0f}/s" if done > elapsed > 0 else ""
        left = f", about {elapsed / done * (total - done):.0f} s left" if total and 0 < done < total else ""
        print(f"{description}: {done:.0f}{of} in {elapsed:.0f} s{rate}{left}", file=sys.stderr, flush=True)


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
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


class Speed(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")
