"""The presets of acil: F-OAL and G-ACIL are one recursion with other settings, and equal the joint ridge solution."""

import pytest
import torch

from nocl.experiments.job import Job
from nocl.methods.acil import ACIL


@pytest.mark.parametrize("preset", ["foal", "gacl"])
def test_preset_equals_the_joint_ridge_solution(preset: str) -> None:
    settings = {**Job("acil", preset=preset).chosen(), "expansion": 30, "stages": None, "backbone": "features:8"}
    learner = ACIL(**settings)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(60, 8, generator=draw), torch.randint(5, (60,), generator=draw)
    for part, labels in zip(z.split(7), y.split(7)):
        learner.learn(part, labels)
    h = z.double() @ learner.layer.matrix.double()
    h = h.sigmoid() if preset == "foal" else h.relu()
    target = torch.nn.functional.one_hot(y, 5).double()[:, learner.classes_]
    gamma = {"foal": 1.0, "gacl": 100.0}[preset]  # of the authors' code
    joint = torch.linalg.solve(h.T @ h + gamma * torch.eye(30, dtype=torch.float64), h.T @ target)
    assert torch.allclose(learner.solution.weight, joint, atol=1e-8)


def test_foal_takes_all_stages_through_a_layer_of_a_thousand() -> None:
    learner = Job("acil", preset="foal").learner(32)
    assert isinstance(learner, ACIL)
    assert learner.feature_dim == 20 + 40 + 80 + 160
    assert (learner.layer.width, learner.layer.activation) == (1000, "sigmoid")
