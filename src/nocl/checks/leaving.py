"""What leaves the process while a learner learns: files opened to write, connections, processes, bytes written.

Python tells of files it opens, connections and processes (audit events); the system counts the bytes that any code
has written. A file that is mapped into memory, or a device, can still be written unseen.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MANY = 16_384  # bytes written: a few lines of a log are less, the images of a check are more
_EVENTS = ("socket.connect", "socket.sendto", "sqlite3.connect", "subprocess.Popen", "os.fork", "os.posix_spawn")
_COUNTED = Path("/proc/self/io")
_heard: list[str] | None = None
_hooked = False


@contextmanager
def leaving() -> Iterator[list[str]]:
    """A list that, after the block, says what left the process while it ran."""
    global _heard, _hooked
    if not _hooked:  # a hook cannot be taken away again; it does nothing outside of a block
        sys.addaudithook(_hear)
        _hooked = True
    said: list[str] = []
    before = _written()
    _heard = said
    try:
        yield said
    finally:
        _heard = None
    if (more := _written() - before) > _MANY:
        said.append(f"{more} bytes written")


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is None:
        return
    if event in _EVENTS:
        _heard.append(event)
    elif event == "open" and _writes(arguments) and str(arguments[0]) != os.devnull:
        _heard.append(f"{arguments[0]} opened to write")


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _written() -> int:
    """Bytes that this process has written so far, to anything; 0 where the system does not say."""
    try:
        lines = _COUNTED.read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
