"""A grid's events as progress: one bar for all runs and one for each that is running."""

import time
from collections.abc import Sequence

from nocl.experiments.grid.work import Event
from nocl.plumbing.progress import current


class Shown:
    """Pass every event to :meth:`hear`; ``names`` are short names of the jobs, by number."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._reporter, self._over = names, current(), 0
        self._running: dict[int, tuple[int, float]] = {}
        self._all = None if self._reporter is None else self._reporter.start("all runs", len(set(names)))

    def hear(self, event: Event) -> None:
        """Show an event with the current reporter, if there is one."""
        reporter, name = self._reporter, self._names[event.number]
        if reporter is None or self._all is None:
            return
        if event.kind == "started":
            self._running[event.number] = reporter.start(name, None), time.monotonic()
        elif event.kind == "progress" and event.number in self._running:
            task, _ = self._running[event.number]
            reporter.rename(task, f"{name}: {event.text}")
            reporter.show(task, event.done, event.total)
        elif event.kind in ("cached", "done", "failed"):
            self._over += 1
            task, begun = self._running.pop(event.number, (reporter.start(name, None), time.monotonic()))
            reporter.rename(task, name)
            reporter.stop(task, _end(event, time.monotonic() - begun))
            reporter.show(self._all, self._over, len(set(self._names)))


def _end(event: Event, seconds: float) -> str:
    if event.kind == "cached":
        return "found"
    if event.kind == "done":
        return f"done in {seconds:.0f} s"
    lines = event.text.strip().splitlines()
    return f"FAILED: {lines[-1] if lines else 'no reason given'}"
