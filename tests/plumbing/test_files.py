"""Files are whole or absent."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl.plumbing.files import (
    DamagedFileError,
    holding,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from nocl.plumbing.seeding import generator, scoped, seed_from


def test_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def fails(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fails)
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())


def test_tensors_and_header_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    base = torch.arange(6.0).view(2, 3)
    write_tensors(path, {"a": base, "b": base.T}, {"list": [1, 2], "text": "x"})
    tensors, header = read_tensors(path)
    assert torch.equal(tensors["b"], base.T)
    assert header == {"list": [1, 2], "text": "x"}


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.ones(4)}, {})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            read_tensors(path)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_writing_over_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    before = os.umask(0o022)
    try:
        write_json(path, 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        for mode in (0o600, 0o660, 0o444):
            path.chmod(mode)
            write_json(path, mode)
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert path.read_text() == f"{mode}\n"
    finally:
        os.umask(before)


@contextmanager
def _as_ordinary_user() -> Iterator[None]:
    """The superuser may read everything, so the tests run as nobody where they are run by it."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
def test_a_file_that_may_not_be_read_is_not_said_to_be_missing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = Path(folder) / "t.safetensors"
        write_tensors(path, {"a": torch.ones(4)}, {})
        path.chmod(0)
        for act in (read_tensors, lambda path: holding(path).__enter__()):
            with _as_ordinary_user(), pytest.raises(PermissionError, match=r"t\.safetensors may not be read.*chmod"):
                act(path)
        path.chmod(0o600)
        with holding(path):  # the failed attempt left no lock behind
            pass
        os.chmod(folder, 0o555)
        with _as_ordinary_user(), pytest.raises(PermissionError, match=r"other\.lock"):
            holding(Path(folder) / "other").__enter__()  # no lock can be made there, which is another matter


@pytest.mark.parametrize("act", [read_tensors, lambda path: holding(path).__enter__()])
def test_a_folder_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(IsADirectoryError, match=r"models is a folder, not a file; give the path of a file"):
        act(tmp_path / "models")
    monkeypatch.chdir(tmp_path / "models")
    with pytest.raises(IsADirectoryError, match=r"\. is a folder"):
        act(Path(""))
    assert [entry.name for entry in tmp_path.iterdir()] == ["models"]


def test_what_is_no_file_is_said_so_without_waiting_for_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone: no such file"):
        read_tensors(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match=r"file/below: no such file"):
        read_tensors(tmp_path / "file" / "below")
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match=r"pipe is a pipe or device, not a file; copy its content"):
            read_tensors(tmp_path / "pipe")


def test_scope_hides_and_restores_the_global_generator() -> None:
    before = torch.get_rng_state()
    with scoped(3):
        first = torch.rand(2)
    with scoped(3):
        assert torch.equal(first, torch.rand(2))
    assert torch.equal(before, torch.get_rng_state())


def test_seed_parts_are_told_apart() -> None:
    assert seed_from(1, 12) != seed_from(11, 2)
    assert seed_from(1) != seed_from("1")
    assert torch.equal(torch.rand(3, generator=generator(5, "a")), torch.rand(3, generator=generator(5, "a")))
