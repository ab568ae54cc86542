"""Writing files whole or not at all: under a temporary name, flushed to disk, then renamed."""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as _tensor_bytes
from torch import Tensor

from nocl.plumbing.types import JSON

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be replaced anyway
    fcntl = None  # type: ignore[assignment]


class DamagedFileError(ValueError):
    """A file that is truncated, altered or of another kind than its name says."""


class BusyFileError(RuntimeError):
    """Another process holds the file."""


class Hold:
    """The lock of a file: one beside the real file, for its name, and one on its content, for hard links to it."""

    def __init__(self, path: Path) -> None:
        real = path.resolve()
        if real.is_dir():
            raise _is_folder(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        self._name = FileLock(_lock_of(real), timeout=0, thread_local=False)
        self._content: int | None = None
        try:
            self._name.acquire()
            self._lock_content(real)
        except (Timeout, BlockingIOError):
            self.release()
            raise BusyFileError(
                f"{path} is held by another process (a service or a learning command): stop it, or write elsewhere"
            ) from None
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the file."""
        if self._content is not None:
            os.close(self._content)
            self._content = None
        self._name.release()

    def _lock_content(self, real: Path) -> None:
        """Lock the content too, because a hard link has another name and thus another lock file."""
        if fcntl is not None and real.is_file():
            try:
                self._content = os.open(real, os.O_RDONLY)
            except PermissionError:
                raise _may_not_be_read(real) from None
            fcntl.flock(self._content, fcntl.LOCK_EX | fcntl.LOCK_NB)


def hold(path: Path) -> Hold:
    """Lock the file, or raise if another process holds it. Links to the file share its lock."""
    return Hold(path)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Lock a file inside the ``with`` block."""
    lock = hold(path)
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, held: bool = False) -> None:
    """Call ``write`` on a temporary file beside ``path``, flush it to disk, then rename it to ``path``.

    A link stays a link: the file that it leads to is written. A file that is there keeps its permissions. A file that
    someone holds is refused (BusyFileError), unless the caller says that it is the one (``held``).
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644 & ~_umask())
        with nullcontext() if held or not _lock_of(path).exists() else holding(path):
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: JSON) -> None:
    """Write a JSON file whole or not at all; NaN is refused because JSON has no such number."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, JSON]) -> None:
    """Write tensors and a JSON header as one safetensors file, whole or not at all."""
    content = tensor_bytes(tensors, header)
    write_atomically(path, lambda file: file.write(content))


def tensor_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, JSON]) -> bytes:
    """The content of a safetensors file of tensors and a JSON header."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return _tensor_bytes(plain, metadata={name: json.dumps(value) for name, value in header.items()})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, JSON]]:
    """The tensors and header of a safetensors file; header values that are not JSON are returned as text."""
    _check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = {name: _json_or_text(text) for name, text in (file.metadata() or {}).items()}
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: not a whole safetensors file ({error}); copy it again") from error


def digest(value: JSON) -> str:
    """A short content hash of any JSON value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_readable(path: Path) -> None:
    """Raise an OSError with the reason if the path is not a file that can be read; safetensors confuses the reasons."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _is_folder(path)
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is a pipe or device, not a file; copy its content into a file first")
        with open(path, "rb"):
            pass
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path}: no such file") from None
    except PermissionError:
        raise _may_not_be_read(path) from None


def _is_folder(path: Path) -> IsADirectoryError:
    return IsADirectoryError(f"{path} is a folder, not a file; give the path of a file")


def _may_not_be_read(path: Path) -> PermissionError:
    return PermissionError(f"{path} may not be read by this user; allow it (chmod u+r), or ask the file's owner")


def _lock_of(real: Path) -> Path:
    return real.with_name(f".{real.name}.lock")


def _json_or_text(text: str) -> JSON:
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: too deeply nested
        return text
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Make a rename, creation or removal in the folder durable."""
    if os.name == "posix":  # a rename is durable only once its folder is
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
