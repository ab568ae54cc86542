"""A grid as it runs: all running jobs with their progress on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nocl.experiments.grid import Event

SECONDS_BETWEEN_LINES = 30.0


class GridView:
    """Hand :meth:`hear` to the grid; ``names`` are the jobs in a few words, by number."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._over, self._begun = names, 0, time.monotonic()
        self._started: dict[int, float] = {}
        self._said: dict[int, float] = {}
        self._bars: dict[int, TaskID] = {}
        self._live = sys.stderr.isatty()
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._live)
        self._all = self._progress.add_task("all runs", total=len(set(names)))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def hear(self, event: Event) -> None:
        """Show an event."""
        if event.kind == "started":
            self._started[event.number] = time.monotonic()
            self._bars[event.number] = self._progress.add_task(self._names[event.number], total=None)
            self._line(event.number, "started")
        elif event.kind == "progress":
            self._step(event)
        elif event.kind in ("cached", "done", "failed"):
            self._end(event)

    def _step(self, event: Event) -> None:
        name = f"{self._names[event.number]}: {event.text}"
        if event.number in self._bars:
            self._progress.update(self._bars[event.number], description=name, completed=event.done, total=event.total)
        now = time.monotonic()
        if now - self._said.get(event.number, self._started.get(event.number, now)) >= SECONDS_BETWEEN_LINES:
            self._said[event.number] = now
            of = "" if event.total is None else f"/{event.total}"
            self._line(event.number, f"{event.text} {event.done}{of}")

    def _end(self, event: Event) -> None:
        self._over += 1
        self._progress.advance(self._all)
        if event.number in self._bars:
            self._progress.remove_task(self._bars.pop(event.number))
        words: dict[str, str] = {"cached": "found", "done": "done", "failed": "FAILED"}
        took = time.monotonic() - self._started.get(event.number, time.monotonic())
        last = event.text.strip().splitlines()[-1] if event.kind == "failed" and event.text.strip() else ""
        text = words[event.kind] + (f" in {took:.0f} s" if event.kind == "done" else "") + (f": {last}" if last else "")
        if self._live:
            self._console.print(f"{self._names[event.number]}: {text}", highlight=False, markup=False)
        else:
            self._line(event.number, text)

    def _line(self, number: int, text: str) -> None:
        if not self._live:
            message = f"[{self._over}/{len(set(self._names))}] {self._names[number]}: {text}"
            print(message, file=sys.stderr, flush=True)
