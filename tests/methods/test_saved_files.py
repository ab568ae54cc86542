"""Files that earlier versions saved still load, and say so if they cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl.app.classifier import Classifier
from nocl.methods import make, remake
from nocl.methods._saving import load
from nocl.methods.dsr import DSR
from nocl.methods.dsr_calibrated import DSRCalibrated
from nocl.methods.rda.method import RDA
from nocl.results import RunResult
from tests.support.practice_models import COLOURS, fitted, pictures

FIRST = Path(__file__).parents[1] / "fixtures" / "first_edition"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FIRST / "expected.json").read_text())
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
OLD: dict[str, Any] = {"backbone": "tiny_resnet18", "dim": 16}


def images() -> torch.Tensor:
    return torch.cat([pictures(name, 4, seed=7) for name in COLOURS])


def test_a_checkpoint_of_dsr_predicts_as_it_did() -> None:
    learner, expected = load(FIRST / "checkpoint-dsr.safetensors"), EXPECTED["checkpoint-dsr.safetensors"]
    assert learner.classes_.tolist() == expected["classes"]
    assert learner.predict(images()).tolist() == expected["predict"]
    scores = torch.tensor(expected["scores"])
    torch.testing.assert_close(learner.decision_function(images()), scores, atol=1e-5, rtol=0)


def test_a_checkpoint_and_a_model_of_rda_predict_as_they_did() -> None:
    learner, expected = load(FIRST / "checkpoint-rda.safetensors"), EXPECTED["checkpoint-rda.safetensors"]
    assert learner.predict(images()).tolist() == expected["predict"]
    model = Classifier.load(FIRST / "model-rda.nocl")
    assert list(model.predict(images())) == EXPECTED["model-rda.nocl"]["predict"]


def test_what_was_fitted_to_other_scores_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(tuple(COLOURS), method="rda")
    model.save(tmp_path / "now.nocl")
    assert Classifier.load(tmp_path / "now.nocl").calibration_ == model.calibration_
    assert model.calibration_.images
    monkeypatch.setattr(RDA, "scoring", RDA.scoring + 1)  # the scores of a later version
    later = Classifier.load(tmp_path / "now.nocl")
    assert not later.calibration_.images
    with pytest.raises(ValueError, match="reject needs a model fitted with held-out images"):
        later.predict(images(), reject=True)


@pytest.mark.parametrize(("scoring", "saved", "loaded"), [(2, 1.2, 1.0), (9, 2.0, 1.0), (9, 0.7, 0.7), (10, 2.0, 2.0)])
def test_a_default_that_meant_something_else_becomes_the_present_one(
    scoring: int, saved: float, loaded: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(RDA, "scoring", scoring)
        fitted(tuple(COLOURS), method="rda", params={"caution": saved}).save(tmp_path / "then.nocl")
    model = Classifier.load(tmp_path / "then.nocl")
    assert model.params is not None
    assert model.params["caution"] == loaded
    model.save(tmp_path / "now.nocl")
    assert Classifier.load(tmp_path / "now.nocl").params == model.params


def test_retired_parameters_are_dropped_at_their_default() -> None:
    assert type(remake("dsr", {**OLD, "rho": 0.5, "proto_update": "none", "stages": None})) is DSR


def test_what_was_the_preset_calibrated_is_a_method_now() -> None:
    former = {"stages": [2, 3, 4], "covariance": "shrunk", "upper": "contrast", "outer_lr": 0.03, "outer_clip": 0.5}
    learner = remake("dsr", {**OLD, **former, "outer_momentum": 0.9, "clip_negative": False, "samples": 7})
    assert type(learner) is DSRCalibrated
    assert learner.get_params() == make("dsr_calibrated", **OLD, samples=7).get_params()
    assert learner.draw.get_state().equal(DSR(**OLD).draw.get_state())  # the same random numbers as before


def test_retired_parameters_at_another_value_are_refused() -> None:
    with pytest.raises(ValueError, match="dsr no longer has proto_update, which this file sets to 'replace'"):
        remake("dsr", {**OLD, "proto_update": "replace"})


def test_a_committed_result_loads() -> None:
    result = RunResult.load(RESULTS / "sc" / "dsr-8-epochs.json")
    assert result.finished
    assert result.method == "dsr"
    assert result.params["proto_update"] == "none"  # as it was written
    assert len(result.accuracy) == 11
    assert isinstance(remake("dsr", {**result.params, "weights": None}), DSR)
