"""Small learners of DSR and the stored numbers of the reference code, for several test files."""

import json
from pathlib import Path
from typing import Any

import torch

from nocl.checks import BASE_LABELS, NOVEL_LABELS, easy_images, split
from nocl.methods import make
from nocl.methods.dsr import DSR
from tests.support.feature_nets import blobs, feed, on_features

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "dsr.json").read_text())
D, HIGH = 6, 16


def taught(
    n_base: int = 4, n_novel: int = 2, *, n: int = 12, end: bool = True, cls: type[DSR] = DSR, **params: Any
) -> Any:
    """A learner on features: base classes 0 .., then novel ones in one session."""
    untrained = {"head_epochs": 0}  # a random projection is enough, and quick
    learner: DSR = on_features(cls, D, **{"dim": HIGH, "iterations": 3, "recipe": untrained, **params})
    z, y = blobs(n_base + n_novel, n, D)
    z = z.float()
    learner.fit_base_features([(z[y < n_base], y[y < n_base])])
    feed(learner, z[y >= n_base], y[y >= n_base])
    if end:
        learner.end_session()
    return learner


def session_learner() -> tuple[DSR, dict[str, Any], dict[str, Any]]:
    case = CASES["dsr_session"]
    inputs, outputs = case["inputs"], case["outputs"]
    learner: DSR = on_features(
        DSR, 6, power=1.0, dim=10, iterations=inputs["T"], samples=inputs["K"], outer_lr=inputs["outer_lr"],
        inner_lr=inputs["inner"]["lr"], inner_steps=inputs["inner"]["steps"], rho=inputs["inner"]["rho"],
        base_std_extra=0.05, recipe={"head_epochs": 0},
    )  # fmt: skip
    state = {name: torch.tensor(value) for name, value in inputs["projection_state"].items()}
    learner.projection.load_state_dict(state, strict=False)
    learner.fit_base_features([(torch.tensor(inputs["base_x"]), torch.tensor(inputs["base_y"]))])
    return learner, inputs, outputs


def fitted(method: str = "dsr", **params: Any) -> DSR:
    quick: dict[str, Any] = {"epochs": 2, "lr": 0.05, "compile": False}
    learner = make(
        method, backbone="tiny_resnet18", **{"dim": HIGH, "iterations": 2, "outer_lr": 0.1, "recipe": quick, **params}
    )
    learner.fit_base(split(easy_images(BASE_LABELS, 8, seed=1), 16))
    assert isinstance(learner, DSR)
    return learner


def learn(learner: DSR, n: int = 6) -> DSR:
    for x, y in split(easy_images(NOVEL_LABELS, n, seed=2), 5):
        learner.observe(x, y)
    learner.end_session()
    return learner
