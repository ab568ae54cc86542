"""The decoded cache: built once, by one process, whole or not at all, and never in memory."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from nocl.data import ImageSet
from nocl.data import cache as caching
from nocl.data.cache import Stored, stored
from nocl.data.decode import decode_files
from tests.support.data_layouts import write_folder


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NOCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def three_rows(file: BinaryIO) -> dict[str, object]:
    for value in (1, 2, 3):
        file.write(bytes([value]) * 12)
    return {"said": "so"}


def never(_: BinaryIO) -> dict[str, object]:
    raise AssertionError("built a second time")


def test_what_was_built_is_mapped_and_not_built_again() -> None:
    for build in (three_rows, never):
        found = stored("x", "key", 2, 3, build)
        assert isinstance(found.images, np.memmap)
        assert found.images.shape == (3, 3, 2, 2)
        assert found.images[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert found.notes == {"said": "so"}
    with pytest.raises(AssertionError, match="second time"):
        stored("x", "another key", 2, 3, never)


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(file: BinaryIO) -> dict[str, object]:
        file.write(bytes(12))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored("x", "key", 2, 3, fail)
    assert [path.suffix for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_short_rows_are_refused(cache: Path) -> None:
    with pytest.raises(RuntimeError, match="short by 7 bytes"):
        stored("x", "key", 2, 3, lambda file: file.write(bytes(17)) and {})
    assert not list(cache.glob("*.npy"))


@pytest.mark.parametrize("kept", [slice(0, -1), slice(0, 0), slice(1, None)])
def test_a_damaged_cache_is_built_again(cache: Path, kept: slice) -> None:
    stored("x", "key", 2, 3, three_rows)
    (path,) = cache.glob("*.npy")
    whole = path.read_bytes()
    path.write_bytes(whole[kept])
    stored("x", "key", 2, 3, three_rows)
    assert path.read_bytes() == whole


def test_a_full_disk_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
    with pytest.raises(OSError, match=r"need 8\.1 GB and 1\.0 GB are free; set NOCL_CACHE"):
        stored("x", "key", 128, 164_866, never)


def test_changed_sources_are_decoded_again(tmp_path: Path, cache: Path) -> None:
    write_folder(tmp_path / "set", {"a": 3})
    files = sorted((tmp_path / "set" / "a").iterdir())

    def built() -> int:
        decode_files("x", tmp_path / "set", files, size=8, fit="crop")
        return len(list(cache.glob("*.npy")))

    assert [built(), built()] == [1, 1]
    os.utime(files[0], ns=(0, 12345))
    assert built() == 2
    files[1] = files[1].rename(files[1].with_name("new.png"))
    assert built() == 3
    files.pop()
    assert built() == 4
    decode_files("x", tmp_path / "set", files, size=8, fit="squash")
    decode_files("x", tmp_path / "set", files, size=9, fit="crop")
    assert len(list(cache.glob("*.npy"))) == 6


def _build_slowly(log: Path, start: float) -> None:
    def build(file: BinaryIO) -> dict[str, object]:
        with open(log, "a") as lines:
            lines.write("built\n")
        time.sleep(0.3)
        return three_rows(file)

    time.sleep(max(0.0, start - time.time()))
    found: Stored = stored("x", "key", 2, 3, build)
    with open(log, "a") as lines:
        lines.write(json.dumps(found.images[:, 0, 0, 0].tolist()) + "\n")


def test_of_two_processes_one_builds_and_both_read(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    workers = [context.Process(target=_build_slowly, args=(log, time.time() + 0.2)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert log.read_text().split("\n") == ["built", *["[1, 2, 3]"] * 3, ""]


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from nocl.data import ImageSet
from nocl.data.cache import stored

def build(file):
    row = bytes(range(256)) * 192  # 3 x 128 x 128
    for _ in range(2000):
        file.write(row)
    return {}

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = resident()
images = ImageSet.of(stored("big", "key", 128, 2000, build).images, np.zeros(2000, np.int64))
peak, total = 0, 0
for i, order in enumerate(np.array_split(np.random.default_rng(0).permutation(2000), 100)):
    total += int(images.take(order).x.numpy().sum())
    peak = max(peak, resident() - before)
print(peak, total)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to measure resident memory")
def test_a_stream_over_a_large_cache_keeps_resident_memory_flat() -> None:
    output = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    peak, total = map(int, output.split())
    assert total == 2000 * 192 * sum(range(256)), "every pixel was read"
    assert peak < 25e6, f"{peak / 1e6:.0f} MB resident while reading 98 MB"


def test_a_mapped_set_gives_the_same_batches_as_one_in_memory() -> None:
    mapped = ImageSet.of(stored("x", "key", 2, 3, three_rows).images, [0, 1, 0])
    plain = ImageSet.of(np.array(mapped.images), [0, 1, 0])
    assert mapped.content == plain.content
    batch = mapped.take([2, 0])
    np.testing.assert_array_equal(batch.x.numpy(), plain.take([2, 0]).x.numpy())
    batch.x.zero_()  # a copy: neither a fault nor a change of the file
    assert mapped.images[2, 0, 0, 0] == 3
