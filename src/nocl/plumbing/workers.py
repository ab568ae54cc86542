"""Processes that do pieces of work one after the other. A process that dies is replaced and its piece is repeated.

The pieces must be independent. ``prepare`` runs once in each process and returns the function that does a piece; both
must be importable by name, because they are pickled.
"""

import multiprocessing as mp
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, cast

TRIES = 3  # of one piece, before its processes' deaths are an error
STARTS = 3  # of one process
Say = Callable[[Any], None]
Work = Callable[[Any, Say], Any]  # piece, a way to report progress -> answer
Prepare = Callable[[Any], Work]


class WorkFailedError(RuntimeError):
    """A piece could not be done: its processes died again and again, or it raised an error."""


class Message(NamedTuple):
    """From the process that does piece number ``piece``: progress, or the answer if ``over``."""

    piece: int
    value: Any
    over: bool


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Died(NamedTuple):
    """The answer for a piece whose process died or could not be started, if each has a process of its own."""

    reason: str


def in_processes(
    pieces: Sequence[Any], prepare: Prepare, settings: Any, *, workers: int, tries: int = TRIES, alone: bool = False,
    imports: Sequence[str] = (),
) -> Iterator[Message]:  # fmt: skip
    """Do all pieces with so many processes and yield their messages. Closing the iterator ends the processes.

    With ``alone``, each piece has a new process, and a piece that is lost has the answer :class:`Died`. ``imports`` are
    modules that the work imports late: the fork server imports them once for all processes.
    """
    context = _context(prepare.__module__, *imports)
    waiting, lost = deque(range(len(pieces))), Counter[int]()
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number = waiting.popleft()
                try:
                    pipe, process = _start(context, prepare, settings, daemon=not alone)
                except OSError as error:
                    yield Message(number, _lost(f"no process could be started: {error}", alone), over=True)
                    continue
                running[pipe] = (_hand(pipe, pieces, number), process)
            for ready in wait(list(running)) if running else []:
                pipe = cast("Connection", ready)
                number, process = running[pipe]
                message = _listen(pipe, number, alone)
                if message is not None:
                    yield message
                if message is None:
                    del running[pipe]
                    process.join()
                    lost[number] += 1
                    if alone or lost[number] >= tries:
                        yield Message(number, _lost(_death(number, process, lost[number]), alone), over=True)
                    else:
                        waiting.appendleft(number)
                elif message.over and waiting and not alone:
                    running[pipe] = (_hand(pipe, pieces, waiting.popleft()), process)
                elif message.over:
                    del running[pipe]
                    pipe.close()
                    process.join()
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _start(context: BaseContext, prepare: Prepare, settings: Any, *, daemon: bool) -> tuple[Connection, BaseProcess]:
    """A new process. A fork server that has died is started again.

    The settings, which may be large, follow through the pipe: the request for a process is then written at once, and
    an interruption never leaves half of it.
    """
    for left in reversed(range(STARTS)):
        mine, theirs = context.Pipe(duplex=True)
        process: BaseProcess = context.Process(target=_body, args=(prepare, theirs), daemon=daemon)  # type: ignore[attr-defined]
        try:
            _ready_server(context)
            process.start()
            theirs.close()
            with suppress(BrokenPipeError, ConnectionResetError):  # the process is dead already; _listen will notice
                mine.send(settings)
        except (EOFError, ConnectionError) as error:  # the server was killed between the request and its answer
            mine.close()
            if not left:
                raise OSError(f"the fork server died {STARTS} times ({error!r}); out of memory?") from error
        except BaseException:
            mine.close()  # ends the process
            raise
        else:
            return mine, process
        finally:
            theirs.close()
    raise AssertionError("unreachable")


def _ready_server(context: BaseContext) -> None:
    """Start the fork server with SIGINT blocked: Ctrl-C reaches all processes, and the first one ends the others.

    The server takes seconds to import modules, ignores SIGINT only then, and its processes inherit the blocking.
    """
    if context.get_start_method() != "forkserver":
        return
    from multiprocessing import forkserver, resource_tracker  # not on all systems

    resource_tracker.ensure_running()  # before, because its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hand(pipe: Connection, pieces: Sequence[Any], number: int) -> int:
    with suppress(OSError):  # the process may be dead already; _listen will notice
        pipe.send(pieces[number])
    return number


def _listen(pipe: Connection, number: int, alone: bool) -> Message | None:
    """The next message of a process; None if it is dead. An error of the work itself would come again."""
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):
        return None
    return Message(number, _lost(value, alone) if kind == "error" else value, over=kind != "progress")


def _lost(reason: str, alone: bool) -> Died:
    if not alone:
        raise WorkFailedError(reason)
    return Died(reason)


def _death(number: int, process: BaseProcess, times: int) -> str:
    code = process.exitcode or 0
    why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code in (-9, 137):  # SIGKILL, as the system sends it when memory is short; 137 through a shell or container
        remedy = "out of memory?"
    else:
        remedy = 'its own message is above; a script that starts processes needs `if __name__ == "__main__":`'
    return f"the process of part {number + 1} died {times} times ({why}); {remedy}"


def _context(*preload: str) -> BaseContext:
    """A fork server that has imported ``preload`` and started no thread; spawn where fork servers do not exist."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def _body(prepare: Prepare, pipe: Connection) -> None:
    """The main function of a process. It ends when the starting process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starting process ends this one by SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work = prepare(_received(pipe))
        while True:
            piece = _received(pipe)
            pipe.send(("answer", work(piece, lambda value: pipe.send(("progress", value)))))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # reported in one line: the same piece would fail again
        pipe.send(("error", f"{type(error).__name__}: {error}"))


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except OSError as error:  # the starting process ended in the middle of a message
        raise EOFError from error
