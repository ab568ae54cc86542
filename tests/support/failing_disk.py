"""Learn, then have the kernel refuse a system call with EIO, and learn again. Run by test_store.py and the campaign.

    python failing_disk.py MODEL fsync|write

The refusal is a seccomp filter: what fails is SQLite's own call, not a stand-in for it. It cannot be undone, so this
is a process of its own.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from pathlib import Path

CALLS = {  # numbers of the system calls by machine
    "x86_64": {"fsync": (74, 75), "write": (18, 20)},  # fsync, fdatasync; pwrite64, writev
    "aarch64": {"fsync": (82, 83), "write": (68, 66)},
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse(numbers: tuple[int, ...], error: int = errno.EIO) -> None:
    """Let these system calls fail in this process from now on."""
    program = [(_LOAD, 0, 0, 0)]
    for i, number in enumerate(numbers):
        program.append((_EQUAL, len(numbers) - i, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | error)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer)), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):  # no new privileges; seccomp filter
        raise OSError(ctypes.get_errno(), "seccomp is not allowed here")


def main() -> None:
    from nocl.app.serve.journal import FailedDiskError
    from nocl.app.serve.store import Store
    from tests.support.practice_models import pictures

    path, call = Path(sys.argv[1]), sys.argv[2]
    store = Store(path)
    for seed in range(3):
        store.learn([(pictures("blue", 1, seed), "blue")])
    refuse(CALLS[platform.machine()][call])
    for _ in range(2):
        try:
            store.learn([(pictures("red", 1), "red")])
        except FailedDiskError:
            assert store.trouble is not None
        else:
            raise AssertionError("learned on a disk that fails")
    os.write(1, b"3 learned, then refused twice\n")
    os._exit(0)


if __name__ == "__main__":
    main()
