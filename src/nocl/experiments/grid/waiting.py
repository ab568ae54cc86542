"""Which task is next: nobody starts to train a base network that somebody else is training."""

from collections.abc import Sequence

from nocl.experiments.grid.work import Task


class Waiting:
    """Tasks not yet started, in their order. The first of those with an equal ``base`` goes ahead of the others.

    >>> from pathlib import Path
    >>> from nocl.experiments.job import Job
    >>> jobs = [Task(i, Job("ncm"), Path(), Path(), base) for i, base in enumerate("aab")]
    >>> waiting = Waiting(jobs)
    >>> waiting.next().number, waiting.next().number, waiting.next()
    (0, 2, None)
    >>> waiting.ready("a")
    >>> waiting.next().number
    1
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._left = list(tasks)
        self._in_training: set[str] = set()
        self._ready: set[str] = set()

    def __len__(self) -> int:
        return len(self._left)

    def next(self) -> Task | None:
        """A task that can start now; None while all left wait for a base network."""
        for task in self._left:
            if task.base in self._ready or task.base not in self._in_training:
                self._left.remove(task)
                self._in_training.add(task.base)
                return task
        return None

    def ready(self, base: str) -> None:
        """That base network is in the cache."""
        self._ready.add(base)

    def ended(self, base: str) -> None:
        """A task is over, well or not: if it left no network, the next may try."""
        self._in_training.discard(base)
