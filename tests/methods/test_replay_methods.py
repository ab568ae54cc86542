"""The replay baselines step by step: what a step adds up to, what it leaves alone, what the memory sees."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl import nets
from nocl.checks import BASE_LABELS, LEARNER_CHECKS, easy_images, novel, split, teach
from nocl.methods import METHODS
from nocl.plumbing.files import write_tensors
from nocl.plumbing.types import JSON
from tests.support.replay_cases import CASES, changed, fitted

REPLAY = ("aser", "dvc", "gdumb", "mir", "ocm", "scr")
WITH_FT = ("dvc", "ocm", "scr")


@pytest.mark.parametrize("name", REPLAY)
def test_base_epochs_do_not_touch_the_counter(name: str) -> None:
    learner = fitted(name)  # the recipe has two epochs
    assert int(learner.memory.seen) == 24  # one pass over 4 classes of 6 images
    assert learner.stores_exemplars
    assert learner.memory.images.dtype == torch.uint8


@pytest.mark.parametrize("name", REPLAY)
def test_exemplars_are_in_the_ledger_and_bounded(name: str) -> None:
    learner = fitted(name)
    before = learner.state_bytes()["exemplars"]
    teach(learner, novel(6))
    size = learner.memory_size
    assert before == learner.state_bytes()["exemplars"]
    assert size * 3 * 32 * 32 <= before <= size * (3 * 32 * 32 + 16) + 16  # images, columns, perhaps arrivals
    stored = {row.numpy().tobytes(): int(label) for row, label in zip(*_stored(learner))}
    offered = [*split(easy_images(BASE_LABELS, 6, seed=1), 8), *novel(6)]
    known = {x.numpy().tobytes(): int(y) for batch in offered for x, y in zip(batch.x, batch.y)}
    assert stored.items() <= known.items()


def _stored(learner: Any) -> tuple[torch.Tensor, torch.Tensor]:
    n = len(learner.memory)
    return learner.memory.images[:n], learner.classes_[learner.memory.columns[:n]]


@pytest.mark.parametrize("name", WITH_FT)
def test_ft_leaves_the_backbone_alone(name: str) -> None:
    assert METHODS[name].presets["ft"] == {"freeze_backbone": True}
    learner = fitted(name, freeze_backbone=True)
    before = copy.deepcopy(learner)
    for x, y in split(easy_images(BASE_LABELS, 3, seed=5), 6):
        learner.observe(x, y)
    moved = changed(before, learner)
    assert "network" not in moved
    assert "head" in moved
    heads = {"dvc": "qnet", "ocm": "embed"}
    assert name not in heads or heads[name] in moved
    free = fitted(name)
    before = copy.deepcopy(free)
    free.observe(*split(easy_images(BASE_LABELS, 3, seed=5), 6)[0])
    assert "network" in changed(before, free)


@pytest.mark.parametrize(("name", "check"), [("dvc", "interrupted_equals_uninterrupted"), ("scr", "it_learns")])
def test_ft_keeps_the_contract(name: str, check: str) -> None:
    LEARNER_CHECKS[check](METHODS[name], {"freeze_backbone": True})


@pytest.mark.parametrize("name", REPLAY)
def test_all_start_from_the_same_given_network(name: str, tmp_path: Path) -> None:
    network = nets.build("tiny_resnet18", seed=7)
    write_tensors(tmp_path / "base.safetensors", network.state_dict(), {"classes": list(BASE_LABELS)})
    extra: dict[str, JSON] = {"base_epochs": 0} if name == "ocm" else {}
    recipe: dict[str, JSON] = {"head_epochs": 1, "lr": 0.05, "compile": False}
    learner = fitted(name, weights=str(tmp_path / "base.safetensors"), recipe=recipe, **extra)
    for key, tensor in network.state_dict().items():
        assert torch.equal(learner.network.state_dict()[key], tensor), key
    assert len(learner.memory) == 24
    assert learner.base_["weights"] == "base.safetensors"


def test_every_stored_case_is_tested() -> None:
    """Each id begins with a prefix that some test passes to ``cases``."""
    used = re.findall(
        r"@cases\(([^)]*)\)", "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    )
    prefixes = tuple(prefix for names in used for prefix in re.findall(r'"(\w+)"', names))
    assert len(CASES) == 74
    assert [case["id"] for case in CASES if not case["id"].startswith(prefixes)] == []
