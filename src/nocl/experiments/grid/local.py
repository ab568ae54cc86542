"""The local engine: one process a run, several at a time, each with its share of the cores.

A process of its own gives each run its own peak of memory, and one that dies, whatever killed it, takes nothing along.
"""

import multiprocessing as mp
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from nocl.experiments.grid.waiting import Waiting
from nocl.experiments.grid.work import Event, Say, Task, perform


def run_locally(tasks: Sequence[Task], say: Say, workers: int) -> None:
    """Perform the tasks, ``workers`` at a time. When this process is interrupted, it ends them first."""
    context = _context()
    waiting = Waiting(tasks)
    running: dict[Connection, tuple[Task, BaseProcess]] = {}
    try:
        while waiting or running:
            while len(running) < workers and (task := waiting.next()) is not None:
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(task, theirs), daemon=False)  # type: ignore[attr-defined]
                process.start()
                theirs.close()
                running[mine] = task, process
                say(Event(task.number, "started"))
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                task, process = running[pipe]
                if _listen(pipe, task, process, say, waiting):
                    del running[pipe]
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _listen(pipe: Connection, task: Task, process: BaseProcess, say: Say, waiting: Waiting) -> bool:
    """Pass on one event; True if the task is over."""
    try:
        event: Event = pipe.recv()
    except (EOFError, OSError):  # closed without a last word
        process.join()
        code = process.exitcode
        why = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        event = Event(task.number, "failed", f"the process of this run died ({why}); out of memory?")
    say(event)
    if event.kind == "base":
        waiting.ready(task.base)
    if event.kind not in ("done", "failed"):
        return False
    process.join()
    pipe.close()
    if event.kind == "done":
        waiting.ready(task.base)
    waiting.ended(task.base)
    return True


def _context() -> BaseContext:
    """Processes forked from one that has imported everything and started nothing; spawned where that is not to be."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["nocl.experiments.grid.work"])
    return context


def _work(task: Task, pipe: Connection) -> None:
    """The body of one process. It ends when nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid decides, and it asks by SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        perform(task, pipe.send)
    except BrokenPipeError:
        return  # the grid is gone; what is done so far is on disk
    except Exception:  # whatever a run raises must not stop the others: it is reported with its traceback
        pipe.send(Event(task.number, "failed", traceback.format_exc()))
    else:
        pipe.send(Event(task.number, "done"))
