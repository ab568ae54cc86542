"""The local engine: one process for each run, several at a time, each with its share of the cores.

In a separate process, the peak memory of a run can be measured, and a crash does not affect other runs. A run that was
lost is reported as failed, and the next call tries it again.
"""

import traceback
from collections.abc import Sequence
from contextlib import closing

from nocl.experiments.grid.work import Event, Say, Task, perform
from nocl.plumbing.workers import Died, Work, in_processes

LATE = ("torch._dynamo",)  # torch imports it at the first step of an optimiser: a second or two for each run


def run_locally(tasks: Sequence[Task], say: Say, workers: int) -> None:
    """Do the tasks, ``workers`` at a time. When this process is interrupted, it ends them first."""
    said = in_processes(tasks, prepare, None, workers=workers, alone=True, imports=LATE)
    with closing(said) as messages:  # type: ignore[type-var]
        for number, value, _ in messages:
            say(Event(tasks[number].number, "failed", value.reason) if isinstance(value, Died) else value)


def prepare(settings: None) -> Work:
    """The function that does a task, for a new process."""
    return _work


def _work(task: Task, say: Say) -> Event:
    say(Event(task.number, "started"))
    try:
        perform(task, say)
    except BrokenPipeError:
        raise  # the grid is gone; what is done so far is on disk
    except Exception:  # any error of a run is reported with its traceback and must not stop the others
        return Event(task.number, "failed", traceback.format_exc())
    return Event(task.number, "done")
