"""Files are whole or absent."""

from pathlib import Path

import pytest
import torch

from nocl.plumbing.files import DamagedFileError, read_tensors, write_atomically, write_json, write_tensors
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
