"""DSR's network and sessions against the stored numbers of the published code: extractor, transform, projection.

The weights are made by the fixture's rule (SplitMix64), so that no weight file is needed.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nocl.nets import build
from nocl.nets.projection import Projection
from nocl.stats.class_stats import tukey

CASE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "dsr_resnet.json").read_text())
SEED = CASE["inputs"]["seed"]
INPUT = 900_000  # the stream of pixels
BEHIND = 10_000  # what the projection's streams are shifted by


def uniform(stream: int, n: int) -> NDArray[np.float64]:
    """The rule's numbers in [0, 1)."""
    first = (stream * 2**32 + SEED * 2**56 + 1) % 2**64
    z = (np.arange(n, dtype=np.uint64) + np.uint64(first)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def drawn(stream: int, shape: torch.Size, scale: float, centre: float = 0.0) -> Tensor:
    values = centre + scale * (2 * uniform(stream, shape.numel()) - 1)
    return torch.from_numpy(values.astype(np.float32)).view(shape)


@torch.no_grad()
def fill(module: nn.Module, *, running: bool, shift: int = 0) -> None:
    """Parameters and running statistics by the rule; ``running`` off leaves 0 and 1."""
    for k, (name, parameter) in enumerate(module.named_parameters()):
        if parameter.ndim > 1:
            bound = (6 / parameter[0].numel()) ** 0.5
            parameter.copy_(drawn(shift + k, parameter.shape, bound))
        else:
            is_gain = name.endswith("weight")
            parameter.copy_(drawn(shift + k, parameter.shape, 0.2 if is_gain else 0.1, float(is_gain)))
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for m, norm in enumerate(norms if running else []):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(drawn(shift + 1000 + m, norm.running_mean.shape, 0.2))
        norm.running_var.copy_(drawn(shift + 2000 + m, norm.running_var.shape, 0.3, 1.0))
    module.eval()


def images(side: int) -> Tensor:
    x = uniform(INPUT, 2 * 3 * side * side).astype(np.float32).reshape(2, 3, side, side)
    x[1] **= 4
    return torch.from_numpy(x)


def test_the_rule_gives_the_stated_numbers() -> None:
    check = CASE["inputs"]["hash_check"]
    assert uniform(0, 3).tolist() == check["u_stream0_first3"]
    assert uniform(INPUT, 3).tolist() == check["u_stream900000_first3"]


def test_parameters_have_the_names_order_and_shapes_of_the_reference() -> None:
    network = build("reduced_resnet18")
    assert [[name, list(p.shape)] for name, p in network.named_parameters()] == CASE["outputs"]["names"]
    assert sum(p.numel() for p in network.parameters()) == CASE["outputs"]["extractor_param_count"]
    for of_size in CASE["outputs"]["sizes"].values():
        projection = Projection(of_size["plain"]["d"], 2048)
        assert [[name, list(p.shape)] for name, p in projection.named_parameters()] == of_size["projection_names"]
        assert sum(p.numel() for p in projection.parameters()) == of_size["projection_param_count"]


@pytest.mark.parametrize("side", [32, 84, 128])
@torch.no_grad()
def test_features_transform_and_projection_follow_the_reference(side: int) -> None:
    of_size = CASE["outputs"]["sizes"][str(side)]
    projection = Projection(of_size["plain"]["d"], 2048)
    fill(projection, running=True, shift=BEHIND)
    for kind in ("plain", "stats"):
        expected = of_size[kind]
        network = build("reduced_resnet18")
        fill(network, running=kind == "stats")
        z = network(images(side))
        assert z.shape == (2, expected["d"])
        agree(z[:, :10], expected["feature_first10"], 1e-4)
        agree(z[:, -5:], expected["feature_last5"], 1e-4)
        agree(z.double().sum(1), expected["feature_sum"], 1e-4)
        agree(z.double().norm(dim=1), expected["feature_norm"], 1e-4)
        assert int((z == 0).sum()) == expected["zeros"]
        f = tukey(z, 0.5, floor=0.0)  # the reference takes the bare square root
        agree(f[:, :10], expected["tukey_first10"], 1e-4)
        agree(f.double().sum(1), expected["tukey_sum"], 1e-4)
        high = projection(f)
        agree(high[:, :10], expected["projection_first10"], 1e-3)
        agree(high.double().sum(1), expected["projection_sum"], 1e-3)
        agree(high.double().norm(dim=1), expected["projection_norm"], 1e-3)
        cosine = torch.cosine_similarity(high[0], high[1], dim=0).item()
        assert cosine == pytest.approx(expected["projection_cos_between_rows"], abs=1e-4)


def agree(ours: Tensor, expected: list[Any], relative: float) -> None:
    wanted = torch.tensor(expected, dtype=ours.dtype)
    torch.testing.assert_close(ours, wanted, rtol=relative, atol=relative * wanted.abs().max().item())
