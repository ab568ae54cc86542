"""Disks that are full, and disks that fail: an error means that nothing was learned, and nothing learned is lost.

The disk is full for real where this process may mount a small one in memory, else by SQLite's page limit. It fails by
a seccomp filter, which lets the kernel refuse ``fsync`` or ``write`` to SQLite itself.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.campaign.kills import place
from benchmarks.campaign.tally import Counts
from tests.support.practice_models import fitted, pictures

from nocl.app.serve.journal import FailedDiskError
from nocl.app.serve.store import Key, Store

ROOT = Path(__file__).parents[2]


@contextmanager
def small_disk(kilobytes: int) -> Iterator[Path | None]:
    """A disk of this size, or None where mounting is not allowed."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
        mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
        try:
            yield Path(folder) if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", folder], check=True)


def full_disk(times: int, seed: int) -> Counts:
    """Learn under keys while a file of others fills the disk and gives it free again; count after each answer."""
    total = {"lessons": 0, "met a full disk": 0, "wrong counts": 0, "real disks": 0}
    with place() as plain:
        fitted(n=2).save(Path(plain) / "m.nocl")
        size = (Path(plain) / "m.nocl").stat().st_size
        with small_disk(4 * size // 1024 + 400) as disk:
            folder = disk or Path(plain)
            total["real disks"] += disk is not None
            path, filler = folder / "full.nocl", folder / "filler"
            fitted(n=2).save(path)
            store, wanted = Store(path, snapshot_bytes=40_000), 0
            for number in range(times):
                key = Key.of(f"{seed} {number}", "learn")
                if number % 3 == 0:
                    _fill(filler, store, disk is not None)
                total["lessons"] += 1
                for _ in range(2):
                    try:
                        if store.answered(key) is None:
                            store.learn([(pictures("blue", 1, number), "blue")], [key])
                        wanted += 1
                        break
                    except FailedDiskError:  # says so, and only a restart tells: allowed, and compared below
                        store.close()
                        _free(filler, store)
                        store = Store(path, snapshot_bytes=40_000)
                        total["met a full disk"] += 1
                    except OSError:
                        total["met a full disk"] += 1
                        total["wrong counts"] += store.model.counts_.get("blue", 0) != wanted
                        _free(filler, store)
                total["wrong counts"] += store.model.counts_.get("blue", 0) != wanted
            _free(filler, store)
            store._journal.close()
            store._lock.release()
            total["wrong counts"] += _served(path).get("blue", 0) != wanted
    return total


def _fill(filler: Path, store: Store, real: bool) -> None:
    if real:
        with open(filler, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return
    base = store._journal._base
    pages = base.execute("PRAGMA page_count").fetchone()[0]
    base.execute(f"PRAGMA max_page_count={pages}")


def _free(filler: Path, store: Store) -> None:
    filler.unlink(missing_ok=True)
    try:
        store._journal._base.execute("PRAGMA max_page_count=1000000")
    except Exception:  # closed already
        return


def failing_disk(times: int, seed: int) -> Counts:
    """The kernel refuses fsync, then writes, to SQLite: the store says so, stops, and has lost nothing."""
    total = {"failures": 0, "of fsync": 0, "learned all the same": 0, "lost": 0}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with place() as folder:
        for number in range(times):
            path, call = Path(folder) / f"failing{number}.nocl", ("fsync", "write")[number % 2]
            fitted(n=2).save(path)
            done = subprocess.run(
                [sys.executable, str(ROOT / "tests" / "support" / "failing_disk.py"), str(path), call],
                env=environment, capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            total["failures"] += 1
            total["of fsync"] += call == "fsync"
            total["learned all the same"] += done.returncode != 0
            total["lost"] += _served(path) != {"red": 2, "green": 2, "blue": 3}
    return total


def _served(path: Path) -> dict[str, int]:
    store = Store(path)
    try:
        return store.model.counts_
    finally:
        store.close()
