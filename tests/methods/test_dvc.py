"""DVC: losses and choice against the public code, and bounds of its loss."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nocl.checks import BASE_LABELS, easy_images, novel, split, teach
from nocl.methods import METHODS
from nocl.methods.dvc import dual_view, last_layer_gradient, negative_entropy
from nocl.nets.heads import GrowingLinear, GrowingPairHead
from nocl.plumbing.types import JSON
from nocl.stats.memory import gradients, highest, look, moved
from tests.support.replay_cases import SHORT, cases, close, exact, random


@cases("dvc_entropy_")
def test_entropy_of_average_predictions(case: dict[str, Any]) -> None:
    kinds = [exact(case["inputs"][name]).mean(0) for name in ("P_raw", "P_heavy", "P_joint")]
    close(torch.stack([negative_entropy(p) for p in kinds]).mean(), case["outputs"]["L_H"], 1e-7)


@cases("dvc_losses_")
def test_dual_view_loss(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    blocks = [exact(given[f"logits_{kind}"]).requires_grad_() for kind in ("raw", "heavy", "joint")]
    terms = dual_view(blocks[0], blocks[1], blocks[2], torch.tensor(given["labels"]), given["dl_weight"])
    for got, name in zip((*terms, terms.total), ("L_CE", "L_H", "L_D", "total"), strict=True):
        close(got, wanted[name], 1e-7)
    for got, kind in zip(torch.autograd.grad(terms.total, blocks), ("raw", "heavy", "joint"), strict=True):
        close(got, wanted[f"grad_logits_{kind}"], 1e-7)


class TinyDual(nn.Module):
    """The fixture's network: one layer, perhaps batch normalisation, a classifier and QNet."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        values = {name: torch.tensor(value) for name, value in params.items()}
        n_classes, dim = values["backbone.linear.weight"].shape
        self.fc, self.norm = nn.Linear(*values["backbone.fc.weight"].T.shape), nn.Identity()
        draw = torch.Generator()
        self.head, self.qnet = GrowingLinear(dim), GrowingPairHead(len(values["qnet.model.0.bias"]), draw)
        self.head.grow(n_classes, draw)
        self.qnet.grow(n_classes, draw)
        renamed = {f"fc.{kind}": values[f"backbone.fc.{kind}"] for kind in ("weight", "bias")}
        renamed |= {f"head.{kind}": values[f"backbone.linear.{kind}"] for kind in ("weight", "bias")}
        renamed |= {f"qnet.out.{kind}": values[f"qnet.model.2.{kind}"] for kind in ("weight", "bias")}
        first, second = values["qnet.model.0.weight"].T.chunk(2)
        renamed |= {"qnet.first": first, "qnet.second": second, "qnet.bias": values["qnet.model.0.bias"]}
        if "backbone.bn.weight" in values:
            self.norm = nn.BatchNorm1d(dim)
            renamed |= {f"norm.{name[12:]}": v for name, v in values.items() if name.startswith("backbone.bn.")}
        self.load_state_dict(renamed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.fc(x)).relu()
        return self.head(z), z


@cases("dvc_mgi_")
def test_gradient_growth_chooses_the_same_images(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    model = TinyDual(given["params"])
    y = torch.tensor(given["new_y"])
    raw, heavy = model(torch.tensor(given["new_x"] + given["new_x_heavy"]))[0].chunk(2)
    terms = dual_view(raw, heavy, model.qnet(raw, heavy), y, given["dl_weight"])
    close(terms.total, wanted["loss_new"], 1e-4)
    learning = dict(model.named_parameters())
    gradient = gradients(terms.total, learning)
    close(gradient["fc.weight"], wanted["grads"]["backbone.fc.weight"], 1e-4)
    close(torch.cat([gradient["qnet.first"], gradient["qnet.second"]]).T, wanted["grads"]["qnet.model.0.weight"], 1e-4)
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x, labels = torch.tensor(given["cand_x"] + given["cand_x_heavy"]), torch.tensor(given["cand_y"])
    norms = []
    for theta in ({}, moved(learning, gradient, given["lr"])):
        logits, z = look(model, x, theta)  # both views pass as one batch, the raw ones are scored
        norms.append(last_layer_gradient(logits[: len(labels)], z[: len(labels)], labels))
    close(norms[0], wanted["G_before"], 1e-4)
    close(norms[1], wanted["G_after"], 1e-4)
    assert highest(norms[1] - norms[0], given["n_replay"]).tolist() == wanted["chosen_index"]
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, statistics[name]), name


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 8), k=st.integers(2, 7), scale=st.floats(0.01, 50), seed=st.integers(0, 99))
def test_dual_view_terms_keep_their_bounds(n: int, k: int, scale: float, seed: int) -> None:
    """The entropy term lies between -log K and 0; the distance is 0 only if the joint prediction is each view's."""
    raw, heavy, joint = (scale * random(n, k, seed=seed + i) for i in range(3))
    y = torch.arange(n) % k
    terms = dual_view(raw, heavy, joint, y, weight=4.0)
    assert -math.log(k) - 1e-9 <= float(terms.entropy) <= 1e-9
    assert float(terms.distance) > 0
    assert float(dual_view(raw, raw, raw, y, weight=4.0).distance) == 0
    swapped = dual_view(heavy, raw, joint, y, weight=4.0)
    assert float(swapped.cross_entropy) == pytest.approx(float(terms.cross_entropy))


def test_dvc_never_writes_the_base_checkpoint(tmp_path: Path) -> None:
    cls = METHODS["dvc"]
    learner = cls(**{**SHORT, **cls.check_params})  # type: ignore[arg-type]
    learner.fit_base(_Base(), workdir=tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert files
    teach(learner, novel(3))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


class _Base:
    """A base session that can be described, so that its network is kept."""

    classes = BASE_LABELS

    def __iter__(self) -> Any:
        return self.epoch(0)

    def epoch(self, index: int) -> Any:
        return iter(split(easy_images(BASE_LABELS, 4, seed=1), 8))

    def describe(self) -> dict[str, JSON]:
        return {"dataset": "easy images"}
