"""The local engine: one process for each run, several at a time, each with its share of the cores.

In a separate process, the peak memory of a run can be measured, and a crash does not affect other runs. Processes are
forked from a server that has imported everything. If that server is killed, the next start creates a new one; a run
that was lost with it is reported as failed, and the next call tries it again.
"""

import multiprocessing as mp
import signal
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from nocl.experiments.grid.work import Event, Say, Task, perform

STARTS = 3  # of the process of one run


def run_locally(tasks: Sequence[Task], say: Say, workers: int) -> None:
    """Perform the tasks, ``workers`` at a time. When this process is interrupted, it ends them first."""
    context = _context()
    waiting = deque(tasks)
    running: dict[Connection, tuple[Task, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                task = waiting.popleft()
                try:
                    pipe, process = _started(context, task)
                except OSError as error:
                    say(Event(task.number, "failed", f"no process could be started for this run: {error}"))
                    continue
                running[pipe] = task, process
                say(Event(task.number, "started"))
            for spoke in wait(list(running)) if running else []:
                assert isinstance(spoke, Connection)
                if _listen(spoke, *running[spoke], say):
                    del running[spoke]
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _started(context: BaseContext, task: Task) -> tuple[Connection, BaseProcess]:
    """A running process for the task. A fork server that has died is started again."""
    for left in reversed(range(STARTS)):
        mine, theirs = context.Pipe(duplex=False)
        process: BaseProcess = context.Process(target=_work, args=(task, theirs), daemon=False)  # type: ignore[attr-defined]
        try:
            process.start()
        except (EOFError, ConnectionError) as error:  # the server was killed between the request and its answer
            mine.close()
            if not left:
                raise OSError(f"the fork server died {STARTS} times ({error!r}); out of memory?") from error
        else:
            return mine, process
        finally:
            theirs.close()
    raise AssertionError("unreachable")


def _listen(pipe: Connection, task: Task, process: BaseProcess, say: Say) -> bool:
    """Pass on one event; True if the task is over."""
    try:
        event: Event = pipe.recv()
    except (EOFError, OSError):  # closed without a result
        process.join()
        event = Event(task.number, "failed", f"the process of this run died ({_why(process.exitcode)}); out of memory?")
    say(event)
    if event.kind not in ("done", "failed"):
        return False
    process.join()
    pipe.close()
    return True


def _why(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _context() -> BaseContext:
    """Fork server preloaded with ``nocl.experiments.grid.work``; spawn where fork servers do not exist."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["nocl.experiments.grid.work"])
    return context


def _work(task: Task, pipe: Connection) -> None:
    """The main function of one process. It ends when the grid is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grid ends this process by SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        perform(task, pipe.send)
    except BrokenPipeError:
        return  # the grid is gone; what is done so far is on disk
    except Exception:  # any error of a run is reported with its traceback and must not stop the others
        pipe.send(Event(task.number, "failed", traceback.format_exc()))
    else:
        pipe.send(Event(task.number, "done"))
