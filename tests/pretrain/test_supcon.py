"""Supervised contrast and pair labels against hand-computed numbers and public reference code."""

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nocl.pretrain.supcon import pair_labels, supcon
from tests.support.replay_cases import CASES as REPLAY_CASES
from tests.support.replay_cases import cases, close, exact, random

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


@cases("supcon_")
def test_supcon(case: dict[str, Any]) -> None:
    features = exact(case["inputs"]["features"]).requires_grad_()  # [n, views, d]
    n, views = features.shape[:2]
    labels = case["inputs"]["labels"]
    y = torch.arange(n) if labels is None else torch.tensor(labels)
    loss = supcon(
        features.transpose(0, 1).flatten(0, 1),
        y.repeat(views),
        case["inputs"]["temperature"],
        unit=False,
        anchors=n if case["inputs"]["contrast_mode"] == "one" else None,
    )
    if case["id"] == "supcon_bug_no_positive":  # the reference divides 0 by 0
        close(loss, case["corrected"]["mean_over_anchors_with_positives"], 1e-9)
        return
    close(loss, case["outputs"]["loss_f64"], 1e-9)
    close(torch.autograd.grad(loss, features)[0], case["outputs"]["grad_f64"], 1e-9)


def test_supcon_in_float32_survives_a_small_temperature() -> None:
    case = next(case for case in REPLAY_CASES if case["id"] == "supcon_bug_small_tau")
    features = torch.tensor(case["inputs"]["features"]).transpose(0, 1).flatten(0, 1)
    loss = supcon(features, torch.tensor(case["inputs"]["labels"]).repeat(2), case["inputs"]["temperature"])
    assert float(loss) == pytest.approx(case["outputs"]["loss_f64"], rel=1e-5)


@pytest.mark.parametrize(("tau", "wanted"), [(1.0, 0.55144), (0.1, 9.08e-5)])
def test_supcon_of_two_orthogonal_classes(tau: float, wanted: float) -> None:
    views = torch.eye(2).double().repeat(2, 1)  # both views of a sample are the same
    loss = float(supcon(views, torch.tensor([0, 1, 0, 1]), tau))
    assert loss == pytest.approx(math.log(1 + 2 * math.exp(-1 / tau)))
    assert loss == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("tau", [0.07, 0.5, 3.0])
def test_supcon_of_equal_embeddings_is_log_3(tau: float) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    assert float(supcon(torch.ones(4, 6).double(), labels, tau)) == pytest.approx(math.log(3))


def test_supcon_does_not_care_for_order_or_views() -> None:
    z, y = random(5, 2, 8), torch.tensor([0, 1, 0, 2, 1])
    stacked, swapped = z.transpose(0, 1).flatten(0, 1), z.flip(1).transpose(0, 1).flatten(0, 1)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    shuffled = z[order].transpose(0, 1).flatten(0, 1)
    loss = float(supcon(stacked, y.repeat(2), 0.1))
    assert float(supcon(swapped, y.repeat(2), 0.1)) == pytest.approx(loss)
    assert float(supcon(shuffled, y[order].repeat(2), 0.1)) == pytest.approx(loss)
