"""What makes no sense is refused after loading, for every method and each of its tensors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.checks import build, easy_images
from nocl.methods import METHODS
from nocl.methods._meaning import check_meaning
from nocl.methods._saving import load, save
from nocl.plumbing.files import DamagedFileError

# integers that some stream could have led to: labels, the random state, pixels
_ANY = ("classes_", "_extra_state", "memory.images")
_COVARIANCES = (".scatter", ".gram", ".inverse", "common_")


def impossible(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Values that this tensor can never have had."""
    if not tensor.numel() or tensor.dtype == torch.bool or name in _ANY:
        return
    middle = tensor.numel() // 2
    for value in (float("nan"), float("-inf")) if tensor.is_floating_point() else (-2, 2**60):
        changed = tensor.clone()
        changed.view(-1)[middle] = value
        yield str(value), changed
    if name.endswith(("running_var", "radius_", "ridge_")) or ".second_" in name:
        yield "negative", -tensor.abs() - 1
    if name.endswith(_COVARIANCES) and tensor.ndim >= 2 and bool(tensor.any()):
        yield "negative variances", -tensor
        if tensor.shape[-1] == tensor.shape[-2] > 2:
            lopsided = tensor.clone()
            lopsided[..., 0, 1] += 10 * tensor.abs().max()
            yield "a covariance beyond its variances", lopsided


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_method_accepts_what_it_can_never_have_had(method: str, tmp_path: Path) -> None:
    learner = build(METHODS[method], {"recipe": {"epochs": 0, "compile": False}})
    learner.observe(*easy_images((12, 5), 3, seed=2))
    check_meaning(tmp_path, learner)
    state, accepted = {name: tensor.clone() for name, tensor in learner.state_dict().items()}, []
    own = [name for name in state if not name.startswith(("network.", "previous.", "adam."))]
    some = [name for name in state if name.startswith(("network.", "previous.", "adam."))]
    for name in own + some[:2] + [name for name in some if "running_var" in name or "second_" in name][:2]:
        for what, changed in impossible(name, state[name].clone()):
            learner.load_state_dict({**state, name: changed})
            try:
                check_meaning(tmp_path, learner)
                accepted.append(f"{name}: {what}")
            except DamagedFileError:
                continue
            finally:
                learner.load_state_dict(state)
    assert accepted == []


def test_a_fitting_digest_does_not_help(tmp_path: Path) -> None:
    learner = build(METHODS["ranpac"], {"recipe": {"epochs": 0, "compile": False}})
    learner.observe(*easy_images((12, 5), 3, seed=2))
    name = next(name for name in learner.state_dict() if name.endswith(".gram"))
    learner.state_dict()[name].neg_()
    save(learner, tmp_path / "x")
    with pytest.raises(DamagedFileError, match="Gram matrix"):
        load(tmp_path / "x")
