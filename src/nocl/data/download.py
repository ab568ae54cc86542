"""Download a data set's archive: resumed after an interruption, checked against its published hash, then unpacked.

Nothing that is already there is deleted or overwritten: neither an archive with another hash nor an unpacked file.
"""

import http.client
import logging
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from nocl.data import DATASETS, cifar100
from nocl.plumbing.files import DamagedFileError, file_digest, write_atomically
from nocl.plumbing.progress import track
from nocl.plumbing.registry import UnknownNameError, unknown

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20


class DownloadError(OSError):
    """A file that could not be downloaded; the message says what to do instead."""


@dataclass(frozen=True)
class Archive:
    """A published tar file, its size and hash, and which of its members are wanted."""

    url: str
    sha256: str
    size: int
    members: tuple[str, ...]

    @property
    def filename(self) -> str:
        return self.url.rpartition("/")[2]


ARCHIVES: dict[str, Archive] = {
    "cifar100": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        size=169_001_437,
        members=tuple(f"{cifar100.FOLDER}/{name}" for name in cifar100.FILES),
    ),
}

BY_HAND = {
    "glyphs": "glyphs are drawn, not downloaded; there is nothing to fetch",
    "mini_imagenet": (
        "Mini-ImageNet has no open download (its images are ImageNet's). Put mini-imagenet-cache-{train,val,test}.pkl, "
        "or {train,val,test}.csv with images/, or train/<wnid>/ and val/<wnid>/, in ROOT/mini_imagenet"
    ),
    "core50": (
        "CORe50 publishes no hash to check a download by. Get core50_128x128.zip (and, if wanted, paths.pkl, LUP.pkl, "
        "labels.pkl) from https://vlomonaco.github.io/core50 and unpack it so that ROOT/core50_128x128/s1/o1 exists"
    ),
    "folder": "a folder of your own images needs no download; give it as --root",
}


def get(name: str, root: Path) -> list[Path]:
    """Download and unpack a data set under ``root``; returns the files written, none if all were there."""
    if name not in ARCHIVES:
        if name not in DATASETS:
            raise UnknownNameError(unknown(name, DATASETS, "data set"))
        raise DownloadError(BY_HAND[name].replace("ROOT", str(root)))
    archive = ARCHIVES[name]
    missing = [member for member in archive.members if not (root / member).exists()]
    return unpack(fetch(archive, root), missing, root) if missing else []


def fetch(archive: Archive, folder: Path) -> Path:
    """The archive in ``folder``; downloaded if it is missing, continuing an interrupted download."""
    target = folder / archive.filename
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(target.name + ".lock")):
        if target.exists():
            found = file_digest(target)
            if found != archive.sha256:
                raise DamagedFileError(
                    f"{target}: its SHA-256 is {found}, not {archive.sha256}. Nothing was deleted; move the file away "
                    "and run the command again"
                )
            return target
        part = target.with_name(target.name + ".part")
        _complete(archive, part, target)
        found = file_digest(part)
        if found != archive.sha256:
            aside = _free_name(target.with_name(target.name + ".wrong"))
            os.replace(part, aside)
            raise DamagedFileError(
                f"{archive.url}: what came has SHA-256 {found}, not {archive.sha256}. It was kept as {aside}; nothing "
                "of yours was deleted. Run the command again to fetch it anew"
            )
        os.replace(part, target)
    return target


def unpack(archive: Path, members: list[str], root: Path) -> list[Path]:
    """Write these members under ``root`` by their names; other members of the archive are ignored."""
    try:
        with tarfile.open(archive) as tar:
            for member in members:
                source = tar.extractfile(member)
                if source is None:
                    raise DamagedFileError(f"{archive}: {member} is not a file")
                write_atomically(root / member, lambda file, source=source: shutil.copyfileobj(source, file))  # type: ignore[misc]
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DamagedFileError(f"{archive}: cannot be unpacked ({error})") from error
    return [root / member for member in members]


def _complete(archive: Archive, part: Path, target: Path) -> None:
    """Download until ``part`` is as long as the archive, continuing after interruptions."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _download(archive, part)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # no more bytes; the hash check decides
                return
            reason: object = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
        else:
            reason = "the connection broke off"
        size = part.stat().st_size if part.exists() else 0
        if size >= archive.size:
            return
        log.warning("%s: attempt %d of %d: %s", archive.url, attempt, _ATTEMPTS, reason)
    kept = f" {size} of {archive.size} bytes are kept in {part}; run the command again to go on." if size else ""
    raise DownloadError(
        f"cannot fetch {archive.url} ({reason}).{kept} Without a network: put {archive.filename} (SHA-256 "
        f"{archive.sha256}) at {target} and run the command again"
    )


def _download(archive: Archive, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    if start >= archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if start and not resumed:
            log.warning("%s: the server cannot resume; starting again", archive.url)
            start = 0
        total = -(-(archive.size - start) // _CHUNK)
        with open(part, "ab" if start else "wb") as file:
            for chunk in track(_chunks(response), f"fetching {archive.filename} (MiB)", total=total):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())


def _chunks(response: BinaryIO) -> Iterator[bytes]:
    while chunk := response.read(_CHUNK):
        yield chunk


def _free_name(path: Path) -> Path:
    """``path``, or the first of ``path.1``, ``path.2`` ... that is not taken."""
    candidates = (path.with_name(f"{path.name}.{i}") for i in range(1, 1000))
    return path if not path.exists() else next(name for name in candidates if not name.exists())
