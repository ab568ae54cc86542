"""Progress of long work, shown where the caller chooses.

Libraries wrap their loops in :func:`track`; by default nothing is shown. The command line installs a reporter: a bar
with the time left on a terminal, plain lines in a log.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Reporter(Protocol):
    """Shows the progress of named tasks."""

    def start(self, description: str, total: int | None, following: int = 0) -> int:
        """Start a task; returns its number. ``following`` tasks of the same size come after it."""
        ...

    def show(self, task: int, done: int, total: int | None) -> None:
        """Show that ``done`` steps are done."""
        ...

    def rename(self, task: int, description: str) -> None:
        """Change the description of a task, for example for its next part."""
        ...

    def stop(self, task: int, note: str = "") -> None:
        """End a task, complete or not, with an optional remark."""
        ...


_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


@contextmanager
def reporting(reporter: Reporter) -> Iterator[None]:
    """Send all progress inside the block to ``reporter``."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)


def current() -> Reporter | None:
    """The current reporter, or None."""
    return _reporter.get()


def track(items: Iterable[T], description: str, total: int | None = None, following: int = 0) -> Iterator[T]:
    """Iterate over ``items`` and report each step.

    ``following`` such loops come after this one, as epochs do; they count in the time left.

    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    reporter = _reporter.get()
    if reporter is None:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    task = reporter.start(description, total, following)
    try:
        for done, item in enumerate(items, 1):
            yield item
            reporter.show(task, done, total)
    finally:
        reporter.stop(task)


@contextmanager
def steps(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Report steps in groups: yields a function to call with the number of steps just done.

    >>> with steps("learning", 3) as advance:
    ...     advance(2)
    """
    reporter = _reporter.get()
    if reporter is None:
        yield lambda n: None
        return
    task = reporter.start(description, total)
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        reporter.show(task, done, total)

    try:
        yield advance
    finally:
        reporter.stop(task)
