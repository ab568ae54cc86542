"""GDumb: its network depends on the memory alone."""

import copy
from typing import Any

import pytest
import torch

from nocl.checks import BASE_LABELS, easy_images, novel, teach
from nocl.methods.gdumb import GDumb
from nocl.pretrain.augment import cutmix_box
from tests.support.replay_cases import cases, fitted


@cases("gdumb_cutmix_")
def test_cutmix_box(case: dict[str, Any]) -> None:
    side = case["inputs"]["side"]
    box = cutmix_box(case["inputs"]["lam"], tuple(case["inputs"]["centre"]), side)
    assert list(box) == case["outputs"]["box"]
    assert 1 - (box[2] - box[0]) * (box[3] - box[1]) / side**2 == case["outputs"]["lam_adjusted"]


def test_gdumb_depends_on_the_memory_and_not_on_the_past() -> None:
    x = easy_images(BASE_LABELS, 2, seed=9).x
    first = fitted("gdumb", epochs=2)
    second = copy.deepcopy(first)
    first.predict(x)  # one has trained before, the other has not
    for learner in (first, second):
        teach(learner, novel(3))
    assert torch.equal(first.decision_function(x), second.decision_function(x))


def test_gdumb_from_scratch_forgets_the_base_network() -> None:
    x = easy_images(BASE_LABELS, 2, seed=9).x
    first = fitted("gdumb", epochs=1, init="scratch")
    second = copy.deepcopy(first)
    with torch.no_grad():
        for parameter in second.network.parameters():
            parameter.mul_(1.5)
    assert torch.equal(first.decision_function(x), second.decision_function(x))


def test_gdumb_trains_once_for_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, trainings = fitted("gdumb", epochs=1), []
    original = GDumb.train_on_memory
    monkeypatch.setattr(GDumb, "train_on_memory", lambda self: trainings.append(1) or original(self))
    x = easy_images(BASE_LABELS, 2, seed=9).x
    learner.predict(x)
    learner.predict(x[:3])
    assert len(trainings) == 1
    teach(learner, novel(2))
    learner.predict(x)
    assert len(trainings) == 2


def test_gdumb_learns_with_augmentation_and_cutmix() -> None:
    learner = fitted("gdumb", epochs=2, augment="crop_flip", cutmix=0.5)
    assert bool(torch.isfinite(learner.decision_function(easy_images(BASE_LABELS, 2, seed=9).x)).all())
