"""The scikit-learn door: its own checks, and answers equal to those of the learner behind it."""

import builtins
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from nocl.learner import UnsupportedError
from nocl.methods import make
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.registry import UnknownNameError
from nocl.sklearn import StreamingClassifier
from tests.support.vectors import blobs

SMALL: dict[str, dict[str, Any]] = {
    "rda": {}, "slda": {}, "ncm": {}, "fecam": {}, "ranpac": {"expansion": 32}, "acil": {"expansion": 32},
    "dsr": {"dim": 32, "iterations": 3, "samples": 4, "recipe": {"head_epochs": 5}},
}  # fmt: skip


@parametrize_with_checks([StreamingClassifier(method, params=params or None) for method, params in SMALL.items()])
def test_it_keeps_the_rules_of_scikit_learn(estimator: StreamingClassifier, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("method", SMALL)
def test_classes_that_come_later_are_learned_and_columns_are_sorted(method: str) -> None:
    model = StreamingClassifier(method, params=SMALL[method]).fit(*blobs(labels="cb"))
    model.partial_fit(*blobs(labels="fa"))
    assert model.classes_.tolist() == ["a", "b", "c", "f"]
    x, y = blobs(1, labels="abcf")
    assert model.score(x, y) > 0.95
    scores, shares = model.decision_function(x), model.predict_proba(x)
    assert (model.classes_[scores.argmax(1)] == model.predict(x)).all()
    assert (shares.argmax(1) == scores.argmax(1)).all()
    np.testing.assert_allclose(shares.sum(1), 1)


def test_the_answer_is_that_of_the_learner_behind_it() -> None:
    x, y = blobs()
    learner = make("rda", backbone="features:6", power=1.0)
    z = torch.from_numpy(x).float()
    learner.fit_base([(z, torch.tensor(np.repeat([0, 1, 2], 20)))])  # type: ignore[list-item]
    ours = StreamingClassifier("rda").fit(x, y).decision_function(x)  # columns a, b, c; the learner met c, a, b
    np.testing.assert_allclose(ours, learner.decision_function(z)[:, [1, 2, 0]], rtol=1e-4, atol=1e-4)


def test_one_pass_of_slda_agrees_with_refitted_linear_discriminant_analysis() -> None:
    x, y = blobs(each=200)
    model = StreamingClassifier("slda")
    for start in range(0, len(x), 7):
        model.partial_fit(x[start : start + 7], y[start : start + 7])
    test, _ = blobs(1, each=300)
    other = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(x, y)
    assert (model.predict(test) == other.predict(test)).mean() > 0.998


def test_it_works_in_pipelines_searches_and_cross_validation() -> None:
    x, y = blobs()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), StreamingClassifier()),
        {"streamingclassifier__method__prior": [0.5, 3.0], "streamingclassifier__method": ["rda"]},
        cv=2,
    ).fit(x, y)
    assert search.best_score_ > 0.9
    assert search.best_estimator_[1].params["prior"] in (0.5, 3.0)
    assert cross_val_score(StreamingClassifier("ncm"), x, y, cv=3).min() > 0.9


def test_parameters_of_the_method_are_set_by_name_and_survive_cloning() -> None:
    model = StreamingClassifier("rda", params={"prior": 1.0}).set_params(method__ridge=0.5, random_state=3)
    assert model.get_params()["method__ridge"] == 0.5
    assert clone(model).get_params(deep=False) == model.get_params(deep=False)
    assert clone(model).fit(*blobs()).vectors_.learner.ridge == 0.5
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        model.set_params(method__rigde=1)
    with pytest.raises(ValueError, match="'stages' of rda is for images"):
        model.set_params(method__stages=[1])


@pytest.mark.parametrize("method", ["rda", "acil"])
def test_a_copy_by_pickle_or_file_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    model = StreamingClassifier(method, params=SMALL[method]).fit(*blobs())
    model.save(tmp_path / "m.safetensors")
    copies = [pickle.loads(pickle.dumps(model)), StreamingClassifier.load(tmp_path / "m.safetensors")]
    more, test = blobs(2, labels="ad"), blobs(3)[0]
    expected = model.partial_fit(*more).decision_function(test)
    for copy in copies:
        assert np.array_equal(copy.partial_fit(*more).decision_function(test), expected)
        assert copy.classes_.tolist() == ["a", "b", "c", "d"]
    (tmp_path / "m.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:200])
    with pytest.raises(DamagedFileError):
        StreamingClassifier.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([[1.0, 2, 3, 4, 5, np.nan]], ["z"], "NaN"),
        ([[1.0, 2, 3, 4, 5, np.inf]], ["z"], "infinity"),
        ([[1.0, 2, 3]], ["z"], "has 3 features, but StreamingClassifier is expecting 6"),
        ([[1.0, 2, 3, 4, 5, 1e39]], ["z"], "beyond float32"),
        ([[1.0, 2, 3, 3e38, 5, 6]], ["a"], r"column 3 is 3e\+38, beyond the limit of 1e\+15"),
        ([[1.0, -1.1e15, 3, 4, 5, 6]], ["a"], r"column 1 is -1\.1e\+15"),
        ([[1.0, 2, 3, 4, 5, 6]], [5], "labels were <U1 so far and are int64 now"),
    ],
)
def test_bad_vectors_are_refused_and_nothing_is_learned(x: Any, y: Any, reason: str) -> None:
    model = StreamingClassifier("ncm").fit(*blobs())
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=reason):
        model.partial_fit(x, y)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("method", ["rda", "slda", "dsr"])
def test_a_value_at_the_limit_leaves_a_model_that_answers_and_loads(method: str, tmp_path: Path) -> None:
    x, y = blobs()
    x[0, 3] = 1e15
    model = StreamingClassifier(method, params=SMALL[method]).fit(x, y)
    assert np.isfinite(model.decision_function(x)).all()
    model.save(tmp_path / "m.safetensors")
    assert np.array_equal(StreamingClassifier.load(tmp_path / "m.safetensors").predict(x), model.predict(x))


def test_values_beyond_the_limit_are_refused_in_fitting_and_predicting_too() -> None:
    x, y = blobs()
    model = StreamingClassifier("ncm").fit(x, y)
    x[2, 4] = -2e15
    for act in (model.predict, model.predict_proba, model.decision_function, lambda x: model.fit(x, y)):
        with pytest.raises(ValueError, match=r"column 4 is -2e\+15"):
            act(x)


def test_a_column_that_has_a_name_is_named_by_it() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = blobs()
    x[2, 4] = -2e15
    with pytest.raises(ValueError, match=r"column 'e' is -2e\+15"):
        StreamingClassifier("ncm").fit(pandas.DataFrame(x, columns=list("abcdef")), y)


def test_numbers_of_numpy_are_taken_as_parameters_and_can_be_saved(tmp_path: Path) -> None:
    params = {"prior": np.float32(1), "storage": np.str_("full")}
    model = StreamingClassifier(np.str_("rda"), params=params, temperature=np.float32(2), random_state=np.int64(1))  # type: ignore[arg-type]
    assert model.get_params()["random_state"] is model.random_state
    assert model.get_params()["method__prior"] is params["prior"]
    clone(model).fit(*blobs()).save(tmp_path / "m.safetensors")
    loaded = StreamingClassifier.load(tmp_path / "m.safetensors")
    assert (loaded.random_state, loaded.temperature, loaded.params) == (1, 2.0, {"prior": 1.0, "storage": "full"})
    pickle.loads(pickle.dumps(clone(model).fit(*blobs())))
    again = StreamingClassifier("ranpac").set_params(method__expansion=np.int32(32), random_state=np.uint8(3))
    again.fit(*blobs()).save(tmp_path / "n.safetensors")


BIG = 2**60 + 1  # float64 does not have it


def test_whole_numbers_of_two_types_stay_exact_labels() -> None:
    x, _ = blobs(labels="a", each=2)
    for first, second in [(np.int64, np.uint64), (np.uint64, np.int64)]:
        model = StreamingClassifier("ncm").fit(x, np.array([BIG, BIG + 1], dtype=first))
        model.partial_fit(x, np.array([BIG + 2, BIG + 3], dtype=second))
        assert model.classes_.tolist() == [BIG, BIG + 1, BIG + 2, BIG + 3]
    model = StreamingClassifier("ncm").fit(x, np.array([0, 2**63 + 1], dtype=np.uint64))
    assert model.partial_fit(x, np.array([1, 2])).classes_.tolist() == [0, 1, 2, 2**63 + 1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([0, 2**63 + 1], dtype=np.uint64), np.array([-1, 1])),
        (np.array([0, BIG]), np.array([1.0, 2.0])),
    ],
)
def test_labels_that_no_common_type_keeps_are_refused_and_nothing_is_learned(first: Any, second: Any) -> None:
    x, _ = blobs(labels="a", each=2)
    model = StreamingClassifier("ncm").fit(x, first)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=rf"of {first.dtype} and {second.dtype}.*use one type"):
        model.partial_fit(x, second)
    with pytest.raises(ValueError, match="use one type"):
        model.partial_fit(x, first, classes=second)
    assert pickle.dumps(model) == before


def test_nan_cannot_be_announced() -> None:
    x, _ = blobs(labels="a", each=2)
    model = StreamingClassifier("ncm").fit(x, [0.0, 1.0])
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="label nan"):
        model.partial_fit(x, [0.0, 1.0], classes=[0.0, 1.0, np.nan])
    assert pickle.dumps(model) == before


def test_roots_of_negative_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"power=0\.5 is for values that are never negative"):
        StreamingClassifier("rda", params={"power": 0.5}).fit(*blobs())


def test_announced_classes_have_a_column_and_no_probability() -> None:
    x, y = blobs(labels="ab")
    model = StreamingClassifier("slda").partial_fit(x, y, classes=["a", "b", "c"])
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert (model.predict_proba(x)[:, 2] == 0).all()
    assert model.partial_fit(*blobs(labels="d")).classes_.tolist() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("method", "reason"), [("finetune", "trains its network on images"), ("alice", "use ncm")])
def test_a_method_that_needs_images_says_so(method: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        StreamingClassifier(method).fit(*blobs())


@pytest.mark.parametrize("package", ["sklearn", "river"])
def test_without_the_extra_the_error_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.delitem(sys.modules, f"nocl.{package}", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"pip install 'nocl\[{package}\]'"):
        importlib.import_module(f"nocl.{package}")


@pytest.mark.parametrize("method", ["acil", "fecam", "ncm", "ranpac", "rda", "slda"])
def test_the_scale_that_a_method_declares_makes_its_probabilities_mean_something(method: str) -> None:
    x, y = load_digits(return_X_y=True)
    train, test = slice(0, 900), slice(900, None)
    model = StreamingClassifier(method).fit(x[train] / 16, y[train])
    accuracy = model.score(x[test] / 16, y[test])
    assert model.predict_proba(x[test] / 16).max(1).mean() == pytest.approx(accuracy, abs=0.15)
