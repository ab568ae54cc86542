"""Models learned in parts and in one process, for comparing them."""

from pathlib import Path

import torch

from nocl.app.classifier import Classifier
from nocl.app.sources import open_source
from tests.support.practice_models import pictures


def model_file(tmp_path: Path, method: str = "ncm", **params: object) -> Path:
    path = tmp_path / "m.nocl"
    names = ["red"] * 8 + ["green"] * 8
    model = Classifier(method, backbone="tiny_resnet18", recipe={"epochs": 0}, params=params or None)  # type: ignore[arg-type]
    model.fit(torch.cat([pictures("red", 8), pictures("green", 8)]), names).save(path)
    return path


def in_one_process(path: Path, source: Path) -> Classifier:
    model = Classifier.load(path)
    open_source(source).shuffled(model.seed).teach(model, lambda n: None)
    return model


def assert_same(parts: Classifier, whole: Classifier) -> None:
    """Equal to rounding, columns in the same order."""
    assert parts.class_names == whole.class_names
    assert parts.counts_ == whole.counts_
    ours, theirs = (_by_class(model) for model in (parts, whole))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6)


def _by_class(model: Classifier) -> dict[str, torch.Tensor]:
    """The state, rda's triangles in the order of the classes: their rows are given as images come."""
    state = dict(model.learner_.state_dict())
    del state["_extra_state"]
    if "shapes.row" in state:
        row = state.pop("shapes.row")
        state["shapes.triangle"] = state["shapes.triangle"][row]
    return state
