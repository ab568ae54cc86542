"""The model file: what it says, and that no damaged or hostile file does anything but raise a clear error."""

import contextlib
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as tensor_bytes

from nocl.app import modelfile
from nocl.app.classifier import Classifier
from nocl.plumbing.files import DamagedFileError, read_tensors
from nocl.plumbing.sealed import content_digest
from tests.support.practice_models import fitted, pictures


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.nocl"
    fitted().save(path)
    return path


def resigned(saved: Path, to: Path, **changes: Any) -> Path:
    """The file with parts of its header or tensors changed and a digest that fits: what a hostile hand could write."""
    tensors, outer = read_tensors(saved)
    header: Any = outer["nocl"]
    for name, value in changes.items():
        if name == "tensors":
            tensors |= value
        elif isinstance(value, dict) and isinstance(header.get(name), dict):
            header[name] |= value
        else:
            header[name] = value
    header["digest"] = content_digest(header, tensors)
    to.write_bytes(tensor_bytes(tensors, metadata={"nocl": json.dumps(header)}))
    return to


def test_the_header_says_what_the_file_is_and_keeps(saved: Path) -> None:
    header = modelfile.describe(saved)
    assert header["kind"] == "nocl model"
    assert (header["format"], header["method"]) == (1, "ncm")
    assert (header["classes"], header["counts"]) == (["red", "green"], [8, 8])
    privacy: Any = header["privacy"]
    assert privacy["images_stored"] == 0
    assert privacy["forgets_exactly"] is True
    assert privacy["bytes_per_class"] == 64 * 8 + 8 + 8  # float64 mean, count, label
    assert privacy["bytes_shared"] == 8  # how many of the classes are of the base session
    assert set(header["normalisation"]) == {"mean", "std"}  # type: ignore[arg-type]


def test_a_resigned_copy_without_changes_loads(saved: Path, tmp_path: Path) -> None:
    same = Classifier.load(resigned(saved, tmp_path / "same.nocl"))
    x = pictures("red", 3)
    np.testing.assert_array_equal(same.predict_proba(x), Classifier.load(saved).predict_proba(x))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "has format 2, this nocl reads up to 1: update nocl"),
        ({"format": 0}, "no version of nocl writes"),
        ({"format": "1"}, "not a number"),
        ({"kind": "else"}, "not a nocl model"),
        ({"method": "os:system"}, "would run its code"),
        ({"method": 5}, "lacks a method"),
        ({"params": {"backbone": "antigravity:fly"}}, "would run its code"),
        ({"params": {"backbone": "timm:../x y"}}, "would run its code"),
        ({"params": {"weights": "/etc/passwd"}}, "may not name another file"),
        ({"params": {"image_size": 10**9}}, "image_size must be 1 to 1024"),
        ({"params": {"image_size": True}}, "image_size"),
        ({"params": {"power": 1e300}}, "beyond 1000000000"),
        ({"params": {"stages": [1] * 5000}}, "beyond any use"),
        ({"params": {"seed": 2**70}}, "seed"),
        ({"params": {"colour": "red"}}, "unknown parameter"),
        ({"classes": ["red"]}, "counts"),
        ({"classes": ["red", "red"]}, "twice"),
        ({"classes": ["red", "pink"]}, "do not belong"),
        ({"classes": ["red", 7]}, "must be text"),
        ({"counts": [-1, 2]}, "counts"),
        ({"calibration": {"temperature": 0}}, "temperature"),
        ({"calibration": {"confidence": "vibes"}}, "confidence"),
        ({"history": [1]}, "header does not describe"),
        ({"tensors": {"classes_": torch.zeros(2)}}, "list of classes"),
        ({"tensors": {"classes_": torch.zeros(2, dtype=torch.int64)}}, "twice"),
        ({"tensors": {"stats.mean": torch.full((2, 64), float("nan"), dtype=torch.float64)}}, "NaN"),
        ({"tensors": {"stats.mean": torch.zeros(2, 64)}}, "float32"),
        ({"tensors": {"stats.mean": torch.zeros(3, 64, dtype=torch.float64)}}, "does not fit"),
        ({"tensors": {"stats.count": torch.tensor([-1, 2])}}, "negative"),
        ({"tensors": {"stats.count": torch.tensor([8, 9])}}, "counts in the header"),
        ({"tensors": {"n_base_": torch.tensor(3)}}, "counts 3 classes of 2"),
        ({"tensors": {"network.std": torch.zeros(1, 3, 1, 1)}}, "standard deviation|does not fit"),
        ({"tensors": {"_extra_state": torch.zeros(3, dtype=torch.uint8)}}, "does not fit"),
        ({"tensors": {"more": torch.zeros(3)}}, "does not fit"),
    ],
)
def test_a_tampered_file_says_what_is_wrong(saved: Path, tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        Classifier.load(resigned(saved, tmp_path / "bad.nocl", **changes))
    if "backbone" in changes.get("params", {}) or "method" in changes:
        assert "antigravity" not in sys.modules


def test_foreign_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.nocl"
    for content in (b"", b"hello", b"\x80\x04\x95", b"PK\x03\x04" * 10, tensor_bytes({"a": torch.zeros(2)})):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError):
            Classifier.load(path)
    path.write_bytes(tensor_bytes({"a": torch.zeros(2)}, metadata={"nocl": "[" * 200_000}))
    with pytest.raises(DamagedFileError):
        Classifier.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Classifier.load(tmp_path / "absent.nocl")


def test_thousands_of_mutated_files_raise_or_load_and_never_hang(saved: Path, tmp_path: Path) -> None:
    whole = _without_network(saved)  # small, so that there can be thousands; describe() builds no network
    draw = np.random.default_rng(0)
    path = tmp_path / "fuzz.nocl"
    length = struct.unpack("<Q", whole[:8])[0]
    begun, damaged = time.monotonic(), 0
    for i in range(4000):
        path.write_bytes(_mutated(whole, length, draw, i))
        try:
            modelfile.describe(path)
        except (DamagedFileError, OSError):
            damaged += 1
    assert damaged >= 3990  # a mutation may fall on a byte that means nothing, such as a space
    assert time.monotonic() - begun < 120


def _without_network(saved: Path) -> bytes:
    tensors, outer = read_tensors(saved)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("network.")}
    header: Any = outer["nocl"]
    header["digest"] = content_digest(header, kept)
    return tensor_bytes(kept, metadata={"nocl": json.dumps(header)})


def _mutated(whole: bytes, length: int, draw: np.random.Generator, i: int) -> bytes:
    content = bytearray(whole)
    kind = i % 5
    if kind == 0:
        return bytes(content[: draw.integers(0, len(content))])
    if kind == 1:  # anywhere
        content[draw.integers(0, len(content))] ^= 1 << int(draw.integers(0, 8))
    elif kind == 2:  # in the header
        content[8 + draw.integers(0, length)] ^= 1 << int(draw.integers(0, 8))
    elif kind == 3:  # the header's length
        content[:8] = struct.pack("<Q", int(draw.integers(0, 2**62)))
    else:  # a stretch of noise
        start = int(draw.integers(0, length))
        content[start : start + 16] = draw.bytes(16)
    return bytes(content) if bytes(content) != whole else bytes(content[:-1])


def test_headers_with_fitting_digests_but_random_values_raise_clear_errors(saved: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    junk: list[Any] = [
        None,
        True,
        -1,
        2**40,
        1e308,
        "",
        "x" * 1000,
        [],
        {},
        [[]],
        {"a": [1]},
        ["red"] * 3,
        "ncm",
        "\x00",
    ]
    header: Any = read_tensors(saved)[1]["nocl"]
    keys = [key for key in header if key not in ("digest", "nocl", "base", "holdout", "normalisation", "privacy")]
    for i in range(60):
        key = keys[i % len(keys)]
        value = junk[int(draw.integers(0, len(junk)))]
        if isinstance(header[key], dict) and header[key] and i % 2:
            value = header[key] | {str(draw.choice(list(header[key]))): value}
        if value == header[key]:
            continue
        target = resigned(saved, tmp_path / "junk.nocl", **{key: value})
        with contextlib.suppress(DamagedFileError):  # any other error fails
            Classifier.load(target)
