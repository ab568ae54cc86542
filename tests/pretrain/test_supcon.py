"""Supervised contrast and pair labels against hand-computed numbers and public reference code."""

import json
import math
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.pretrain.supcon import pair_labels, supcon

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "dsr.json").read_text())


@pytest.mark.parametrize("tau", ["0.1", "0.07"])
def test_supcon_agrees_with_the_reference(tau: str) -> None:
    case = CASES["dsr_supcon"]
    features = torch.tensor(case["inputs"]["features"])  # [6, 2, 8]
    labels = torch.tensor(case["inputs"]["labels"])
    stacked = features.transpose(0, 1).flatten(0, 1)
    expected = case["outputs"]["loss_by_temperature"][tau]
    assert supcon(stacked, labels.repeat(2), float(tau)).item() == pytest.approx(expected, abs=1e-5)


def test_supcon_leaves_out_rows_without_a_partner() -> None:
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    lonely = supcon(z, torch.arange(5), tau=0.1)
    assert lonely.item() == 0
    lonely.backward()
    assert torch.equal(z.grad, torch.zeros(5, 4))  # type: ignore[arg-type]
    paired = supcon(z, torch.tensor([0, 0, 1, 2, 3]), tau=0.1)
    assert math.isfinite(paired.item())
    assert paired.item() > 0


def test_supcon_does_not_depend_on_the_length_of_rows() -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    assert supcon(5 * z, y, 0.1).item() == pytest.approx(supcon(z, y, 0.1).item(), rel=1e-5)


def _labels(pairs: list[list[int]], n_classes: int) -> list[int]:
    a, b = (torch.tensor([pair[i] for pair in pairs]) for i in (0, 1))
    swapped: Tensor = pair_labels(b, a, n_classes)
    labels = pair_labels(a, b, n_classes)
    assert torch.equal(labels, swapped)
    out: list[int] = labels.tolist()
    return out


def test_pair_labels_agree_with_the_reference() -> None:
    outputs = CASES["alice_pair_labels"]["outputs"]
    for name, n_classes in (("B5", 5), ("B60_first", 60), ("B60_last", 60), ("B60_sampled", 60)):
        assert _labels(outputs[name], n_classes) == [row[2] for row in outputs[name]]


def test_pair_labels_number_all_pairs_once_and_never_reuse_a_real_class() -> None:
    labels = _labels([list(pair) for pair in combinations(range(60), 2)], 60)
    assert sorted(labels) == list(range(60, 1830))
