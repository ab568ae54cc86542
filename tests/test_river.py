"""The river door, against river's own checks and its evaluation loop."""

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from river import checks, datasets, evaluate, metrics, preprocessing, stream

from nocl.river import Classifier
from nocl.sklearn import StreamingClassifier
from tests.support.vectors import blobs

CHECKS = list(checks.yield_checks(Classifier("ncm", keys="fill")))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_rules_of_river(check: Any) -> None:
    check(Classifier("ncm", keys="fill"))


def dicts(x: Any, y: Any) -> list[tuple[dict[str, float], str]]:
    return [({f"v{i}": value for i, value in enumerate(row)}, label) for row, label in zip(x.tolist(), y.tolist())]


@pytest.mark.parametrize("method", ["rda", "slda", "ncm"])
def test_one_by_one_equals_many_at_once(method: str) -> None:
    x, y = blobs()
    model = Classifier(method)
    for row, label in dicts(x, y):
        model.learn_one(row, label)
    many = StreamingClassifier(method).partial_fit(x, y)
    test, labels = blobs(1, each=3)
    for (row, _), expected, shares in zip(dicts(test, labels), many.predict(test), many.predict_proba(test)):
        assert model.predict_one(row) == expected
        found = model.predict_proba_one(row)
        np.testing.assert_allclose([found[name] for name in "abc"], shares, rtol=1e-3, atol=1e-6)


def test_river_evaluates_it() -> None:
    model = preprocessing.StandardScaler() | Classifier("slda", keys="fill")
    found = evaluate.progressive_val_score(datasets.Phishing().take(300), model, metrics.Accuracy())
    assert found.get() > 0.8


def test_before_the_first_sample_there_is_no_answer() -> None:
    model = Classifier()
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_proba_one({"a": 1.0}) == {}


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ({"a": 1.0}, r"1 missing \('b'\), 0 new \(-\)"),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, r"0 missing \(-\), 1 new \('c'\)"),
        ({"a": 1.0, "b": float("nan")}, "feature 'b' is nan"),
        ({"a": 1.0, "b": "red"}, "features must be numbers"),
        ({"a": 1.0, "b": 10**400}, "features must be numbers"),
        ({"a": 1.0, "b": -3e38}, r"feature 'b' is -3e\+38, beyond the limit of 1e\+15"),
        ({"a": 1.0, "b": 1e300}, r"feature 'b' is 1e\+300, beyond the limit of 1e\+15"),
    ],
)
def test_bad_samples_are_refused_and_nothing_is_learned(x: dict[str, Any], reason: str) -> None:
    model = Classifier("ncm")
    model.learn_one({"a": 1.0, "b": -1.0}, "first")
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=reason):
        model.learn_one(x, "second")
    assert pickle.dumps(model) == before


@pytest.mark.filterwarnings("error")
def test_values_beyond_the_limit_are_refused_from_the_first_and_in_answers() -> None:
    model = Classifier("rda")
    with pytest.raises(ValueError, match=r"feature 'b' is 1e\+39, beyond"):
        model.learn_one({"a": 1.0, "b": 1e39}, "first")
    assert model.predict_one({"a": 1.0}) is None
    model.learn_one({"a": 1.0, "b": -1e15}, "first")
    for answer in (model.predict_one, model.predict_proba_one):
        with pytest.raises(ValueError, match=r"feature 'a' is -1e\+16, beyond"):
            answer({"a": -1e16, "b": 1.0})


@pytest.mark.parametrize("label", [float("nan"), np.float32("nan"), Decimal("nan")])
def test_nan_is_no_label(label: Any) -> None:
    model = Classifier("ncm")
    with pytest.raises(ValueError, match=r"(?i)label nan .* leave the sample out"):
        model.learn_one({"a": 1.0}, label)
    model.learn_one({"a": 1.0}, "first")
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=r"(?i)label nan"):
        model.learn_one({"a": 2.0}, label)
    assert pickle.dumps(model) == before


def test_numbers_of_numpy_are_taken_as_parameters() -> None:
    model = Classifier("rda", params={"prior": np.float32(1)}, temperature=np.float32(2), seed=np.int64(1))  # type: ignore[arg-type, dict-item]
    model.learn_one({"a": 1.0}, "first")
    assert pickle.loads(pickle.dumps(model)).predict_one({"a": 1.0}) == "first"
    assert model.clone().seed == 1


def test_keys_fill_takes_zero_for_a_missing_key_and_leaves_new_ones_out() -> None:
    filled, plain = Classifier("ncm", keys="fill"), Classifier("ncm")
    for model in (filled, plain):
        model.learn_one({"a": 1.0, "b": -1.0}, 0)
        model.learn_one({"a": -1.0, "b": 1.0}, 1)
    filled.learn_one({"a": 2.0, "new": 5.0}, 0)
    plain.learn_one({"a": 2.0, "b": 0.0}, 0)
    row = {"a": 0.3, "b": 0.1}
    assert filled.predict_proba_one(row) == plain.predict_proba_one(row)


def test_a_method_that_cannot_start_from_one_sample_says_so() -> None:
    with pytest.raises(ValueError, match="more than one sample"):
        Classifier("dsr", params={"dim": 16}).learn_one({"a": 1.0, "b": 2.0}, "first")


def test_a_stream_of_river_is_learned() -> None:
    x, y = blobs()
    model = Classifier("ncm")
    for row, label in stream.iter_array(x, y):
        model.learn_one(row, label)
    assert sum(model.predict_one(row) == label for row, label in stream.iter_array(x, y)) > 57
