"""Checkpoints: damage is noticed, what they name is not imported, and they ask for no more memory than they justify."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as tensor_bytes

from nocl.checks import QUICK, easy_images
from nocl.methods import make
from nocl.methods._saving import load, save
from nocl.plumbing.files import DamagedFileError, read_tensors
from nocl.plumbing.registry import UntrustedNameError, by_name, importing_only
from nocl.plumbing.sealed import content_digest

FIRST = Path(__file__).parents[1] / "fixtures" / "first_edition"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learner = make("rda", **{**QUICK, "backbone": "tiny_resnet18"})
    learner.observe(*easy_images((3, 5), 4, seed=0))
    path = tmp_path_factory.mktemp("saved") / "learner.safetensors"
    save(learner, path)
    return path


def resigned(saved: Path, to: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """The file with parts changed and a digest that fits: what a hostile hand could write."""
    content, outer = read_tensors(saved)
    header: Any = outer["nocl"]
    header["params"] |= changes.pop("params", {})
    header |= changes
    content |= tensors or {}
    header["digest"] = content_digest(header, content)
    to.write_bytes(tensor_bytes(content, metadata={"nocl": json.dumps(header)}))
    return to


@pytest.mark.parametrize(
    "changes",
    [{"params": {"backbone": "antigravity:fly"}}, {"method": "antigravity:Fly"}, {"method": "os:abort"},
     {"params": {"recipe": {"objective": "antigravity:fly"}}}, {"params": {"backbone": "antigravity:fly@64"}},
     {"params": {"backbone": "antigravity:fly.x"}}, {"params": {"backbone": "antigravity:fly!"}},
     {"params": {"recipe": {"objective": "antigravity:fly@3"}}}, {"params": {"backbone": "timm:hf_hub:some/one"}},
     {"params": {"recipe": {"options": {"a": [["antigravity:fly"]]}}}}],
)  # fmt: skip
def test_what_a_checkpoint_names_is_not_imported_unless_it_is_trusted(
    saved: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = resigned(saved, tmp_path / "x", **changes)
    for trust in (False, ("nocl.methods:other",)):
        with pytest.raises(DamagedFileError, match="trust=True"):
            load(path, trust=trust)
    assert "antigravity" not in sys.modules


def test_nothing_is_imported_even_where_the_header_was_not_looked_at() -> None:
    """The second lock: the registry itself refuses, whatever a name looks like and wherever it stood."""
    names = ("antigravity:fly", "antigravity:fly@64", "\N{LATIN SMALL LETTER E WITH ACUTE}vil:f", ":x", "a:b:c")
    with importing_only(["json:dumps"]):
        assert by_name("json:dumps", {}, "thing") is json.dumps
        for name in names:
            with pytest.raises(UntrustedNameError, match="was not imported"):
                by_name(name, {}, "thing")
    assert "antigravity" not in sys.modules


def test_own_networks_that_are_trusted_by_name_load_with_a_side_too(tmp_path: Path) -> None:
    learner = make("ncm", **{**QUICK, "backbone": "nocl.nets.resnet:tiny_resnet18@48"})
    learner.observe(*easy_images((3, 5), 2, seed=0))
    save(learner, tmp_path / "own")
    for trust in (("nocl.nets.resnet:tiny_resnet18",), ("nocl.nets.resnet:tiny_resnet18@48",), True):
        assert load(tmp_path / "own", trust=trust).backbone == "nocl.nets.resnet:tiny_resnet18@48"
    with pytest.raises(DamagedFileError, match="trust=True"):
        load(tmp_path / "own")


def test_an_old_checkpoint_without_a_digest_still_loads_and_is_not_trusted_more(tmp_path: Path) -> None:
    for path in FIRST.glob("checkpoint-*.safetensors"):
        tensors, header = read_tensors(path)
        assert header["format"] == 1
        assert len(load(path).classes_) == len(tensors["classes_"])
        header["params"] = {**header["params"], "backbone": "os:abort"}  # type: ignore[dict-item]
        (tmp_path / "x").write_bytes(tensor_bytes(tensors, metadata={k: json.dumps(v) for k, v in header.items()}))
        with pytest.raises(DamagedFileError, match="os:abort"):
            load(tmp_path / "x")


def test_every_flipped_bit_is_noticed(saved: Path, tmp_path: Path) -> None:
    whole, draw = saved.read_bytes(), np.random.default_rng(0)
    length = struct.unpack("<Q", whole[:8])[0]
    for i in range(60):
        content = bytearray(whole)
        position = 8 + int(draw.integers(length)) if i % 3 == 0 else int(draw.integers(8 + length, len(whole)))
        content[position] ^= 1 << int(draw.integers(8))
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(DamagedFileError):
            load(tmp_path / "x")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"stats.mean": torch.full((2, 64), torch.nan, dtype=torch.float64)}, "NaN|fit"),
        ({"stats.count": torch.tensor([-1, 4])}, "negative"),
        ({"n_base_": torch.tensor(3)}, "counts 3 classes of 2"),
        ({"network.std": torch.zeros(1, 3, 1, 1)}, "standard deviation|fit"),
        ({"classes_": torch.tensor([3, 3])}, "twice"),
    ],
)
def test_what_makes_no_sense_is_refused(saved: Path, tmp_path: Path, tensors: Any, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        load(resigned(saved, tmp_path / "x", tensors))


def test_rows_that_point_outside_are_refused(saved: Path, tmp_path: Path) -> None:
    name = next(name for name in read_tensors(saved)[0] if name.endswith(".row"))
    with pytest.raises(DamagedFileError, match="points outside"):
        load(resigned(saved, tmp_path / "x", {name: torch.tensor([0, 77])}))


def test_a_header_cannot_ask_for_more_memory_than_its_file_justifies(tmp_path: Path) -> None:
    learner = make("acil", **{**QUICK, "backbone": "tiny_resnet18", "expansion": 32})
    save(learner, tmp_path / "small")
    load(tmp_path / "small")
    path = resigned(tmp_path / "small", tmp_path / "x", params={"expansion": 20_000})
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom nocl.methods._saving import load\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    load(Path(sys.argv[1]))\nexcept ValueError as error:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    kilobytes, _, words = done.stdout.partition(" ")
    assert "more than the file justifies" in words
    assert int(kilobytes) < 200_000


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "absent")


def test_copies_do_not_leak_and_draw_the_same_numbers(saved: Path) -> None:
    learner = load(saved)
    copied = learner.copy_on_network()
    assert copied.draw is not learner.draw
    assert torch.equal(torch.rand(3, generator=copied.draw), torch.rand(3, generator=learner.draw))
    assert copied.network is learner.network
    for _ in range(50):
        learner.copy_on_network()
    before = _resident()
    for _ in range(1500):
        learner.copy_on_network()
    assert _resident() - before < 3_000_000  # a leaking generator would take 6 MB


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
