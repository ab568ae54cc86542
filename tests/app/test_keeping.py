"""What a classifier was taught is neither lost nor counted twice: interruptions, copies, files, settings."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nocl.app import fitting
from nocl.app.classifier import Classifier
from nocl.methods.ncm import NCM
from nocl.plumbing.files import DamagedFileError
from tests.support.practice_models import fitted, pictures, same_bits, state, untaught


def taught(**changes: Any) -> Classifier:
    return Classifier(**{"backbone": "cifar100", "engine": "torch"} | changes).partial_fit(pictures("red", 3), "red")


def test_an_interrupted_lesson_teaches_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = taught()
    before, passes = state(model), []
    features = model.learner_.features  # type: ignore[attr-defined]

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        passes.append(len(x))
        if len(passes) == 2:
            raise KeyboardInterrupt
        return features(x)

    monkeypatch.setattr(model.learner_, "features", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(pictures("green", fitting.AT_ONCE + 1), "green")
    assert passes == [fitting.AT_ONCE, 1]
    assert same_bits(state(model), before)
    model.save(tmp_path / "model.nocl")
    assert Classifier.load(tmp_path / "model.nocl").counts_ == {"red": 3}


def test_a_method_of_ones_own_observes_in_its_own_way() -> None:
    class Both(NCM):
        def observe(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().observe(torch.cat([x, x.flip(-1)]), torch.cat([y, y]))

    model = taught(method="ncm")
    model.learner_.__class__ = Both
    model.partial_fit(pictures("red", 2), "red")
    assert model.learner_.stats.count.tolist() == [3 + 2 * 2]  # type: ignore[attr-defined]


def test_features_with_wrong_names_leave_no_class_behind() -> None:
    model = taught()
    z = model.learner_.features(pictures("blue", 3))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="3 images need 3 names, not 2"):
        model.learn_features(z, ["one", "two"])
    assert model.counts_ == {"red": 3}
    assert model.learn_features(z.numpy(), "mug").counts_ == {"red": 3, "mug": 3}


COPIES: list[Callable[[Classifier], Classifier]] = [
    Classifier.copy,
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
]


@pytest.mark.parametrize("copied", COPIES)
def test_what_a_copy_learns_is_merged(copied: Callable[[Classifier], Classifier]) -> None:
    model = taught()
    other = copied(model).partial_fit(pictures("red", 2, seed=1), "red").partial_fit(pictures("blue", 2), "blue")
    assert model.merge(other).counts_ == {"red": 5, "blue": 2}
    assert model.merge(other).counts_ == {"red": 5, "blue": 2}  # a second time it brings nothing


@pytest.mark.parametrize("copied", COPIES)
def test_two_copies_that_learned_one_class_are_not_merged_by_guess(copied: Callable[[Classifier], Classifier]) -> None:
    model = taught()
    other = copied(model).partial_fit(pictures("red", 4, seed=1), "red")
    model.partial_fit(pictures("red", 3, seed=2), "red")
    with pytest.raises(ValueError, match="both went on learning red"):
        model.merge(other)
    assert model.counts_ == {"red": 6}


def test_what_was_learned_after_a_merge_is_merged_too() -> None:
    model, other = taught(), Classifier(backbone="cifar100", engine="torch").partial_fit(pictures("blue", 2), "blue")
    model.merge(other)
    other.partial_fit(pictures("blue", 2, seed=1), "blue")
    assert model.merge(other).counts_ == {"red": 3, "blue": 4}


def test_classes_that_a_merge_brings_end_the_calibration() -> None:
    model, other = fitted(), untaught(backbone="tiny_resnet18").fit(pictures("blue", 8), "blue")
    assert model.calibration_.images
    model.merge(other)
    assert model.calibration_.images == 0


def test_an_emptied_model_is_not_calibrated() -> None:
    model = fitted()
    assert model.apart().partial_fit(pictures("blue", 2), "blue").calibration_.images == 0
    model.forget("red").forget("green").partial_fit(pictures("blue", 2), "blue")
    assert model.calibration_.images == 0


@pytest.mark.parametrize("names", [("red",), ("red", "green", "blue")])
def test_few_classes_are_refused_by_their_scores(names: tuple[str, ...]) -> None:
    model = fitted(names, n=20, method="rda", backbone="cifar100", engine="torch", holdout=0.3, recipe=None)
    assert model.calibration_.confidence == "score"
    known = torch.cat([pictures(name, 10, seed=5) for name in names])
    assert sum(answer is None for answer in model.predict(known, reject=0.1)) <= len(known) // 2
    assert list(model.predict(pictures("grey", 10, seed=5), reject=0.1)) == [None] * 10


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"degrees": 1e6}},
        {"params": {"degrees": 1_000_000}},
        {"params": {"shortlist": 100_000}},
        {"params": {"shortlist": np.int64(5), "prior": np.float32(1)}},
        {"seed": np.int64(3)},
        {"size": np.int64(32)},
        {"holdout": np.float32(0.25)},
    ],
)
def test_settings_are_read_back(changes: dict[str, Any], tmp_path: Path) -> None:
    model = taught(**changes)
    model.save(tmp_path / "model.nocl")
    loaded = Classifier.load(tmp_path / "model.nocl", engine="torch")
    assert same_bits(state(loaded), state(model))
    for name, value in changes.items():
        found = loaded.get_params()[name]
        assert {key: found[key] for key in value} == value if isinstance(value, dict) else found == value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"params": {"degrees": float("inf")}}, "inf is beyond"),
        ({"size": 1056}, "size must be a whole number of pixels from 1 to 1024, not 1056"),
        ({"size": "32"}, "not '32'"),
        ({"size": -3}, "not -3"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"seed": 1.5}, "not 1.5"),
        ({"holdout": "a"}, "holdout must be from 0 to below 1, not 'a'"),
    ],
)
def test_settings_that_no_file_could_hold_are_refused_at_once(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Classifier(**{"backbone": "cifar100"} | changes)


def test_a_refused_change_of_settings_changes_nothing() -> None:
    model = Classifier(backbone="cifar100", engine="torch")
    with pytest.raises(ValueError, match="bogus"):
        model.set_params(backbone="bogus", seed=5)
    assert (model.backbone, model.seed) == ("cifar100", 0)
    model.partial_fit(pictures("red", 1), "red")


def test_how_a_network_is_kept_is_checked_and_only_a_written_file_counts(tmp_path: Path) -> None:
    model = taught()
    with pytest.raises(ValueError, match='"whole" or "name", not \'Whole\''):
        model.save(tmp_path / "model.nocl", network="Whole")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        model.save(tmp_path, network="name")
    model.save(tmp_path / "whole.nocl")
    model.save(tmp_path / "name.nocl", network="name")
    assert (tmp_path / "whole.nocl").stat().st_size > (tmp_path / "name.nocl").stat().st_size + 4_000_000


def test_a_weight_file_with_a_colon_in_its_name_is_no_code(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = tmp_path / "net:v2.safetensors"
    save_file(taught().learner_.network.state_dict(), weights)
    model = taught(backbone=weights)
    model.save(tmp_path / "model.nocl")
    assert same_bits(state(Classifier.load(tmp_path / "model.nocl")), state(model))


@pytest.mark.parametrize("left", [(), ("green",), ("green", "blue")])
def test_sketches_of_what_is_left_after_forgetting_are_read_back(left: tuple[str, ...], tmp_path: Path) -> None:
    model = taught(params={"storage": "sketch"})
    for name in left:
        model.partial_fit(pictures(name, 1), name)
    model.forget("red", exact=True).save(tmp_path / "model.nocl")
    loaded = Classifier.load(tmp_path / "model.nocl", engine="torch")
    assert loaded.class_names == list(left)
    alone = Classifier(backbone="cifar100", engine="torch", params={"storage": "sketch"})
    for name in left:
        alone.partial_fit(pictures(name, 1), name)
    assert bool((loaded.learner_.stats.scatter == 0).all())  # type: ignore[attr-defined]
    if left:
        x = pictures("blue", 4, seed=3)
        np.testing.assert_array_equal(loaded.decision_function(x), alone.decision_function(x))


def test_rounding_left_by_forgetting_in_older_files_is_accepted_and_damage_is_not(tmp_path: Path) -> None:
    model = taught(params={"storage": "sketch"})
    model.learner_.stats.scatter.zero_()[0, 0] = -2e-9  # type: ignore[attr-defined]
    model.save(tmp_path / "model.nocl")
    Classifier.load(tmp_path / "model.nocl")
    model.learner_.stats.scatter[0, 0] = -1.0  # type: ignore[attr-defined]
    model.save(tmp_path / "model.nocl")
    with pytest.raises(DamagedFileError, match="a negative variance"):
        Classifier.load(tmp_path / "model.nocl")


def test_merging_something_else_is_named() -> None:
    with pytest.raises(TypeError, match=r"Classifier\.load"):
        taught().merge("model.nocl")  # type: ignore[arg-type]
