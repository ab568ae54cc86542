"""Several processes train as one: the number of devices changes nothing but rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from nocl import nets
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import Batch
from nocl.pretrain import Recipe, train_base
from nocl.pretrain.devices import Compute, Worker, computing

CLASSES = (0, 1, 2)
RECIPE = Recipe(objective="sc", epochs=2, lr=1e-6, projection=8, power=0.5, compile=False)


def batches() -> list[Batch]:
    """Three batches of sizes 9, 9 and 6: the first two do not halve evenly."""
    y = torch.arange(24) % 3
    x = torch.randint(256, (24, 3, 32, 32), generator=generator(0), dtype=torch.uint8)
    x[:, 0] = (x[:, 0] // 4 + 60 * y[:, None, None]).to(torch.uint8)
    return [Batch(a, b) for a, b in zip(x.split(9), y.split(9))]


def train(recipe: Recipe = RECIPE) -> tuple[list[float], dict[str, Any]]:
    network = nets.build("tiny_resnet18")
    trained = train_base(network, batches(), recipe, classes=CLASSES, image_size=32, seed=0)
    return trained.losses, {**network.state_dict(), **trained.objective.state_dict()}


def test_two_processes_have_the_loss_curve_of_one_with_the_doubled_batch() -> None:
    """Contrast over all ranks' features, synchronised batch normalisation: the same steps, up to rounding.

    The rate is small because an untrained network magnifies rounding from step to step, with one process or two. The
    updates are compared as well: a gradient that missed the other process's rows would be another one.
    """
    start = {**nets.build("tiny_resnet18").state_dict()}
    losses, state = train()
    with computing(Compute(devices=2)):
        shared_losses, shared_state = train()
    assert shared_losses == pytest.approx(losses, rel=1e-4)
    names = [name for name in start if name.endswith("weight")]
    update = torch.cat([(state[name] - start[name]).flatten() for name in names])
    shared = torch.cat([(shared_state[name] - start[name]).flatten() for name in names])
    assert update.norm() > 1e-5
    assert ((update - shared).norm() / update.norm()).item() < 0.03


def test_a_process_closes_its_group_when_its_training_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a group that is open when the process ends may abort it. Here the one process is this one."""
    alone = Compute().fabric(torch.device("cpu"))
    monkeypatch.setattr(Compute, "fabric", lambda self, device: alone)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        with computing(Compute(devices=2)):
            losses, _ = train(RECIPE.with_changes({"epochs": 1}))
        assert len(losses) == 1
        assert not distributed.is_initialized()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def test_lower_precision_trains_and_is_not_the_same() -> None:
    with computing(Compute(precision="bf16-mixed")):
        losses, _ = train(RECIPE.with_changes({"epochs": 1}))
    full, _ = train(RECIPE.with_changes({"epochs": 1}))
    assert losses != full
    assert losses == pytest.approx(full, rel=0.05)


def test_without_fabric_a_worker_is_the_network_itself() -> None:
    network = nn.Linear(2, 2)
    worker = Worker()
    assert worker.share(network) is network
    assert worker.writes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 0}, "devices and nodes must be 1 or more, not 0 and 1"),
        ({"precision": "8"}, "unknown precision '8'"),
    ],
)
def test_wrong_devices_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, UnknownNameError), match=message):
        Compute(**settings)
