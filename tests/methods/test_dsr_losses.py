"""DSR's losses against hand-computed numbers and the stored values of public reference code."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.methods.dsr import alignment, mean_absolute_cosine, penalty, separation

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "dsr.json").read_text())


def drift(h: Tensor, start: Tensor) -> Tensor:
    """C-FSCIL's term against drift, which DSR leaves out."""
    return (1 - torch.cosine_similarity(h.tanh(), start.tanh(), dim=1)).mean()


def test_alignment_agrees_with_the_reference_in_value_and_gradient() -> None:
    case = CASES["dsr_cosine_loss"]
    a = torch.tensor(case["inputs"]["a"], requires_grad=True)
    loss = alignment(a, torch.tensor(case["inputs"]["b"]))
    loss.backward()
    assert loss.item() == pytest.approx(case["outputs"]["real"]["loss"], abs=1e-6)
    torch.testing.assert_close(a.grad, torch.tensor(case["outputs"]["real"]["grad_a"]), atol=1e-6, rtol=0)


def test_penalties_agree_with_the_reference() -> None:
    for phi, table in (
        ("exp", CASES["dsr_refine"]["outputs"]["phi"]),
        ("doubleexp", CASES["cfscil_nudging"]["outputs"]["phi_doubleexp"]),
    ):
        for cosine, expected in table:
            value = penalty(torch.tensor(cosine), phi).item()  # type: ignore[arg-type]
            assert value == pytest.approx(expected, abs=1e-4)


def test_exp_is_least_at_opposite_and_doubleexp_at_orthogonal() -> None:
    cosines = torch.linspace(-1, 1, 201)
    assert cosines[penalty(cosines, "exp").argmin()].item() == -1
    assert cosines[penalty(cosines, "doubleexp").argmin()].item() == pytest.approx(0, abs=1e-6)


def test_separation_by_hand() -> None:
    e1, e2 = torch.eye(2)
    fixed, moving = e1[None], torch.stack([e1, e2])
    assert separation(fixed, moving).item() == pytest.approx((math.exp(4) - 1) / 2, abs=1e-4)  # 26.7991 + 0


def test_one_moving_row_gives_a_finite_loss() -> None:
    h = torch.tensor(CASES["dsr_refine"]["inputs"]["h"])
    expected = CASES["dsr_refine"]["corrected"]["one_novel_loss_per_step"][0]
    assert separation(h[:8], h[8:]).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("run", ["exp_lr0.1_10steps", "exp_lr0.01_5steps", "doubleexp_lr0.1_10steps"])
def test_nudging_of_constrained_fscil_follows_the_reference(run: str) -> None:
    phi, lr, steps = run.split("_")
    h = torch.tensor(CASES["dsr_refine"]["inputs"]["h"], requires_grad=True)
    start, none = h.detach().clone(), torch.zeros(0, 16)
    optimizer = torch.optim.SGD([h], lr=float(lr[2:]), momentum=0.9, nesterov=True)
    totals: list[float] = []
    for _ in range(int(steps.removesuffix("steps"))):
        loss = separation(none, h, phi) + drift(h, start)  # type: ignore[arg-type]
        totals.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = CASES["cfscil_nudging"]["outputs"]["runs"][run]
    assert totals == pytest.approx(expected["total"], abs=2e-5)
    torch.testing.assert_close(h.detach(), torch.tensor(expected["nudged"]), atol=1e-5, rtol=0)


def test_mean_absolute_cosine_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]])
    assert mean_absolute_cosine(rows).item() == pytest.approx(1 / 3)
    assert mean_absolute_cosine(rows[:1]).item() == 0
