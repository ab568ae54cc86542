"""Decoded images on disk: one memory-mapped ``uint8`` array for each set, built once, written whole or not at all.

The name of a cache file is a hash of everything that determines its pixels, so a changed source gets a new file.
Any of these files may be deleted at any time; it is then built again.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from filelock import FileLock
from numpy.typing import NDArray

from nocl.plumbing.files import digest, write_atomically, write_json
from nocl.plumbing.types import JSON

log = logging.getLogger(__name__)

_FORMAT = 1  # increase when the same sources would give other pixels


@dataclass(frozen=True, eq=False)
class Stored:
    """A memory-mapped array and the notes of its builder."""

    images: NDArray[np.uint8]  # [N, 3, H, W], read only
    notes: dict[str, Any]


def cache_root() -> Path:
    """Where decoded images are kept: ``NOCL_CACHE``, else the user's cache directory."""
    return Path(os.environ.get("NOCL_CACHE") or platformdirs.user_cache_path("nocl") / "decoded").expanduser()


def stored(name: str, key: JSON, size: int, expected: int, build: Callable[[BinaryIO], dict[str, JSON]]) -> Stored:
    """The images ``[N, 3, size, size]`` of that key, built by ``build`` if they are not there.

    ``build`` writes rows in order to the file it gets and returns its notes; ``expected`` rows decide how
    much room the disk must have. If two processes need the same array, one builds it and the other waits.
    """
    stem = cache_root() / f"{name}-{digest([_FORMAT, size, key])}"
    found = _read(stem, size)
    if found is not None:
        return found
    stem.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(stem.with_suffix(".lock")):
        found = _read(stem, size)
        if found is None:
            _check_space(stem.parent, expected * 3 * size * size)
            write_atomically(stem.with_suffix(".npy"), lambda file: _write(file, stem, size, build))
            found = _read(stem, size)
    if found is None:
        raise OSError(f"{stem}.npy: not readable right after it was written; check the disk")
    return found


def _read(stem: Path, size: int) -> Stored | None:
    images, notes = stem.with_suffix(".npy"), stem.with_suffix(".json")
    if not (images.is_file() and notes.is_file()):
        return None
    try:
        array = np.load(images, mmap_mode="r")
        content = json.loads(notes.read_text())
    except (ValueError, EOFError) as error:
        log.warning("%s: damaged (%s), building it again", images, error)
        return None
    if array.shape[1:] != (3, size, size) or array.dtype != np.uint8:
        log.warning("%s: holds %s %s, building it again", images, array.dtype, array.shape)
        return None
    return Stored(array, content)


def _write(file: BinaryIO, stem: Path, size: int, build: Callable[[BinaryIO], dict[str, JSON]]) -> None:
    _write_header(file, 0, size)
    start = file.tell()
    notes = build(file)
    count, rest = divmod(file.tell() - start, 3 * size * size)
    if rest:
        raise RuntimeError(f"{stem.name}: the last row is short by {3 * size * size - rest} bytes")
    file.seek(0)
    _write_header(file, count, size)
    if file.tell() != start:
        raise RuntimeError(f"{stem.name}: a header for {count} rows does not fit where it was written")
    write_json(stem.with_suffix(".json"), notes)  # before the array: its existence means that all files are complete


def _write_header(file: BinaryIO, count: int, size: int) -> None:
    """NumPy pads its headers so that the number of rows may be filled in later."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, size, size)}
    np.lib.format.write_array_header_1_0(file, header)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{folder}: decoded images need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "set NOCL_CACHE to a folder on a larger disk"
        )
