"""The classifier for applications: habits, inputs, names, calibration, forgetting, merging."""

import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nocl.app.calibration import Calibration, auc, calibrate, fit_temperature
from nocl.app.classifier import Classifier
from nocl.app.naming import label_of
from nocl.data.decode import BadImageError
from nocl.data.pictures import batch_of
from nocl.learner import NotFittedError, UnsupportedError
from tests.support.practice_models import (
    COLOURS,
    fitted,
    folder_of,
    image_of,
    pictures,
    png,
    same_bits,
    state,
    untaught,
)


def test_it_learns_predicts_and_scores_by_name() -> None:
    model = fitted(("red", "green", "blue"))
    assert model.classes_.tolist() == ["red", "green", "blue"]
    assert model.predict(pictures("blue", 3, seed=1)).tolist() == ["blue"] * 3
    assert model.score(pictures("red", 4, seed=1), "red") == 1.0
    assert model.score(pictures("red", 4, seed=1), ["red", "red", "blue", "green"]) == 0.5
    proba = model.predict_proba(pictures("red", 4, seed=1))
    assert proba.shape == (4, 3)
    np.testing.assert_allclose(proba.sum(1), 1)


def test_fit_reads_files_as_their_turn_comes_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder_of(tmp_path, {"red": 30, "green": 30, "blue": 30})
    files = sorted(root.rglob("*.png"))
    names = [path.parent.name for path in files]
    at_once: list[int] = []

    def counted(pictures: Any, size: int, fit: Any) -> torch.Tensor:
        rows = batch_of(pictures, size, fit)
        at_once.append(len(rows))
        return rows

    ready = {"backbone": "cifar100", "engine": "torch", "holdout": 0.2}
    together = Classifier("ncm", **ready).fit(batch_of(files, 32), names)
    monkeypatch.setattr("nocl.data.pictures.batch_of", counted)
    model = Classifier("ncm", **ready).fit(files, names)
    assert same_bits(state(model), state(together))
    assert model.calibration_ == together.calibration_
    assert max(at_once) <= len(files) // 3
    before = state(model)
    files[40].write_bytes(b"no image")
    with pytest.raises(BadImageError, match=files[40].name):
        model.fit(files, names)
    assert same_bits(state(model), before)
    assert model.counts_ == together.counts_


def test_one_image_adds_a_class_and_a_known_class_is_not_duplicated() -> None:
    model = fitted()
    model.partial_fit(pictures("blue", 1), "blue")
    assert model.predict(pictures("blue", 2, seed=3)).tolist() == ["blue", "blue"]
    model.partial_fit(pictures("blue", 2, seed=1), ["blue", "blue"])
    assert model.class_names == ["red", "green", "blue"]
    assert model.counts_ == {"red": 8, "green": 8, "blue": 3}


def test_every_kind_of_picture_gives_the_same_answer(tmp_path: Path) -> None:
    model = fitted()
    x = pictures("red", 2, seed=5)
    files = [tmp_path / f"{i}.png" for i in range(2)]
    for path, image in zip(files, x):
        image_of(image).save(path)
    expected = model.decision_function(x)
    kinds = [
        x.numpy(), x.permute(0, 2, 3, 1).numpy(), [image_of(image) for image in x], files, [str(f) for f in files],
        [f.read_bytes() for f in files], [x[0], x[1].numpy()], np.array([str(f) for f in files]),
        np.array(files, dtype=object), [io.BytesIO(f.read_bytes()) for f in files],
    ]  # fmt: skip
    for kind in kinds:
        np.testing.assert_array_equal(model.decision_function(kind), expected)
    assert model.decision_function(files[0]).shape == (1, 2)
    assert model.predict(torch.zeros(0, 3, 32, 32, dtype=torch.uint8)).tolist() == []


def test_pictures_of_other_sizes_are_brought_to_size() -> None:
    model = fitted()
    assert model.predict(pictures("green", 1, size=57)).tolist() == ["green"]
    assert model.predict([image_of(pictures("green", 1, size=100)[0])]).tolist() == ["green"]


@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        (torch.zeros(1, 3, 32, 32), TypeError, "uint8"),
        (np.zeros((4, 4), dtype=np.uint8), ValueError, r"\[B, 3, H, W\]"),
        ([b"not an image"], BadImageError, "picture 0: not an image"),
        ([b""], BadImageError, "empty"),
        ("nowhere.png", BadImageError, "nowhere.png"),
        ([3.5], TypeError, "float"),
    ],
)
def test_bad_pictures_are_refused_and_change_nothing(images: object, error: type, words: str) -> None:
    model = fitted()
    before = state(model)
    with pytest.raises(error, match=words):
        model.partial_fit(images, "red")  # type: ignore[arg-type]
    assert same_bits(before, state(model))


def test_bad_names_are_refused() -> None:
    model = fitted()
    for name in ("", " x", "a\nb", "x" * 201):
        with pytest.raises(ValueError, match="class name"):
            model.partial_fit(pictures("red", 1), name)
    with pytest.raises(ValueError, match="2 images need 2 names, not 1"):
        model.partial_fit(pictures("red", 2), ["red"])


def test_parameters_and_clones_follow_scikit_learn() -> None:
    model = untaught(seed=3, params={"metric": "euclidean"})
    again = Classifier(**model.get_params())
    assert again.get_params() == model.get_params()
    changed = fitted(seed=3).clone(seed=4)
    assert changed.seed == 4
    with pytest.raises(NotFittedError):
        changed.predict(pictures("red", 1))
    with pytest.raises(ValueError, match="unknown parameter 'sead'"):
        model.clone(sead=1)
    with pytest.raises(ValueError, match="learned already"):
        fitted().set_params(seed=1)


def test_an_untrained_network_must_be_fitted_first() -> None:
    with pytest.raises(NotFittedError, match="not trained yet"):
        untaught().partial_fit(pictures("red", 1), "red")


def test_saved_and_continued_equals_never_interrupted(tmp_path: Path) -> None:
    lessons = [(pictures(name, 3, seed), name) for seed, name in enumerate(["blue", "red", "grey", "blue"])]
    never, stopped = fitted(), fitted()
    for i, (x, name) in enumerate(lessons):
        never.partial_fit(x, name)
        stopped.partial_fit(x, name)
        stopped.save(tmp_path / f"{i}.nocl")
        stopped = Classifier.load(tmp_path / f"{i}.nocl")
    assert same_bits(state(never), state(stopped))
    x = pictures("grey", 5, seed=9)
    np.testing.assert_array_equal(never.predict_proba(x), stopped.predict_proba(x))
    assert (never.classes_.tolist(), never.counts_) == (stopped.classes_.tolist(), stopped.counts_)


def test_forgetting_removes_name_and_statistics() -> None:
    model, never = fitted(), fitted()
    model.partial_fit(pictures("blue", 4), "blue").forget("blue")
    mine, theirs = state(model), state(never)
    assert same_bits(mine, theirs)
    assert "blue" not in str(model.about())
    with pytest.raises(KeyError, match="no class 'blue'"):
        model.forget("blue")
    model.forget("red").forget("green")
    with pytest.raises(NotFittedError, match="knows no class"):
        model.predict(pictures("red", 1))
    assert model.partial_fit(pictures("grey", 1), "grey").class_names == ["grey"]


def test_models_that_learned_apart_merge_to_the_one_that_saw_all(tmp_path: Path) -> None:
    fitted().save(tmp_path / "base.nocl")
    a, b, both = (Classifier.load(tmp_path / "base.nocl") for _ in range(3))
    for model in (a, both):
        model.partial_fit(pictures("blue", 3), "blue").partial_fit(pictures("red", 2, 5), "red")
    for model in (b, both):
        model.partial_fit(pictures("grey", 4), "grey").partial_fit(pictures("green", 2, 6), "green")
    a.merge(b)
    assert a.counts_ == {"red": 10, "green": 10, "blue": 3, "grey": 4}
    x = torch.cat([pictures(name, 3, 9) for name in COLOURS])
    order = [a.class_names.index(name) for name in both.class_names]
    np.testing.assert_allclose(a.decision_function(x)[:, order], both.decision_function(x), atol=1e-6)


def test_merging_what_both_went_on_learning_needs_the_common_model(tmp_path: Path) -> None:
    fitted().save(tmp_path / "base.nocl")
    a, b, both, base = (Classifier.load(tmp_path / "base.nocl") for _ in range(4))
    a.partial_fit(pictures("red", 2, 5), "red")
    b.partial_fit(pictures("red", 3, 6), "red")
    both.partial_fit(pictures("red", 2, 5), "red").partial_fit(pictures("red", 3, 6), "red")
    with pytest.raises(ValueError, match="both went on learning red"):
        a.copy().merge(b)
    with pytest.raises(ValueError, match="copied from"):
        a.copy().merge(b, common=a)
    a.merge(b, common=base)
    assert a.counts_ == {"red": 13, "green": 8}
    for name, tensor in state(both).items():
        torch.testing.assert_close(state(a)[name], tensor, rtol=1e-12, atol=1e-12)
    again = a.counts_
    assert a.merge(Classifier.load(tmp_path / "base.nocl")).counts_ == again  # an ancestor brings nothing new


def test_temperature_and_rejection_come_from_held_out_images() -> None:
    model = fitted(("red", "green", "blue", "grey"), n=20, holdout=0.25)
    assert model.calibration_.images == 20
    assert model.counts_["red"] == 20  # they are learned after they have served
    known = torch.cat([pictures(name, 20, 3) for name in COLOURS])
    refused = [name is None for name in model.predict(known, reject=0.1)]
    assert np.mean(refused) < 0.5
    far = torch.randint(0, 256, (20, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    assert list(model.predict(far, reject=0.1)) == [None] * 20
    with pytest.raises(ValueError, match="reject must be a share"):
        model.predict(known, reject=1.5)
    with pytest.raises(ValueError, match="reject needs a model fitted"):
        fitted(holdout=0.0).predict(known, reject=True)


def test_a_model_calls_itself_calibrated_only_while_it_is() -> None:
    model = fitted(("red", "green", "blue"), n=20, holdout=0.25)
    held, probability = model.calibration_.temperature, model.predict_proba(pictures("red", 1, 3))
    model.partial_fit(pictures("red", 2, 5), "red")
    assert model.calibration_.images == 15  # a known class
    assert model.calibration_.temperature == held
    np.testing.assert_allclose(probability.sum(), 1)
    model.partial_fit(pictures("grey", 2, 5), "grey")
    assert model.calibration_.images == 0


def test_what_held_out_images_showed_is_carried_to_a_model_with_more_classes(tmp_path: Path) -> None:
    model = fitted(("red", "green", "blue"), n=20, holdout=0.25)
    calibration = model.calibration_
    assert calibration.own is not None
    model.partial_fit(pictures("grey", 2, 5), "grey")
    own = model.learner_.softmax_temperature()
    factor = min(max(calibration.temperature / calibration.own, 0.25), 4)
    assert model.calibration_.temperature == pytest.approx(own * factor)
    model.save(tmp_path / "model.nocl")
    assert Classifier.load(tmp_path / "model.nocl").calibration_ == model.calibration_
    assert Calibration(1e-6, own=8.0).carried(10.0) == 2.5  # ten images, all right, do not make a model certain
    assert Calibration(3.0, images=5).carried(10.0) == 10.0  # a file saved before says nothing of it
    taught = fitted(("red", "green"), n=3, holdout=0.0)
    assert taught.calibration_.temperature == taught.learner_.softmax_temperature()


def test_the_threshold_refuses_the_share_asked_for() -> None:
    calibration = Calibration(1.0, 5, "score", None, tuple(float(v) for v in range(101)))
    assert [calibration.threshold(share) for share in (0.0, 0.05, 0.5)] == [0.0, 5.0, 50.0]


def test_calibration_by_hand() -> None:
    scores = torch.tensor([[5.0, 0.0]] * 9 + [[0.0, 5.0]])
    temperature = fit_temperature(scores, torch.zeros(10, dtype=torch.int64))
    assert 5 / temperature == pytest.approx(np.log(9), rel=1e-4)  # right nine times in ten: p = 0.9
    assert auc(torch.tensor([1.0]), torch.tensor([1.0])) == 0.5
    sure = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    truth = torch.arange(200) % 6
    made = calibrate(sure + 4 * torch.nn.functional.one_hot(truth, 6), truth)
    assert Calibration.from_json(made.to_json()) == made
    for broken in (
        None,
        {},
        made.to_json() | {"temperature": -1.0},
        made.to_json() | {"own": 0.0},
        made.to_json() | {"reached": ["x"]},
    ):
        with pytest.raises(ValueError):
            Calibration.from_json(broken)


def test_labels_are_the_same_in_every_model() -> None:
    assert label_of("mug") == 5686520777215798
    assert fitted().learner_.classes_.tolist() == [label_of("red"), label_of("green")]


def test_methods_that_train_the_network_work_but_cannot_forget(tmp_path: Path) -> None:
    model = Classifier("finetune", backbone="tiny_resnet18", recipe={"epochs": 1})
    x = torch.cat([pictures("red", 6), pictures("green", 6)])
    model.fit(x, ["red"] * 6 + ["green"] * 6).partial_fit(pictures("blue", 2), "blue")
    assert model.class_names == ["red", "green", "blue"]
    model.save(tmp_path / "m.nocl")
    np.testing.assert_array_equal(Classifier.load(tmp_path / "m.nocl").predict_proba(x), model.predict_proba(x))
    with pytest.raises(UnsupportedError):
        model.forget("blue")
    assert "trained on the images" in str(model.privacy()["kept"])


SMALL_DSR = {"dim": 32, "iterations": 2, "samples": 4}


def test_dsr_learns_forgets_and_goes_on_after_loading(tmp_path: Path) -> None:
    model = Classifier("dsr", backbone="tiny_resnet18", recipe={"epochs": 1}, params=SMALL_DSR)
    x = torch.cat([pictures("red", 6), pictures("green", 6)])
    model.fit(x, ["red"] * 6 + ["green"] * 6).partial_fit(pictures("blue", 2), "blue").forget("red")
    model.save(tmp_path / "m.nocl")
    again = Classifier.load(tmp_path / "m.nocl")
    assert again.class_names == ["green", "blue"]
    assert again.privacy()["forgets_exactly"] is False
    for each in (model, again):
        each.partial_fit(pictures("red", 1), "red")
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def test_a_packaged_network_works_at_once() -> None:
    try:
        packaged = Classifier(backbone="cifar100")
        model = packaged.partial_fit([png("red"), png("red", 1)], "red").partial_fit(png("blue"), "blue")
    except FileNotFoundError:
        pytest.skip("the packaged network is not in this source tree")
    assert model.predict([png("red", 4), png("blue", 4)]).tolist() == ["red", "blue"]
    assert model.predict_proba(png("red", 4)).max() > 0.5


def test_timm_networks_are_asked_for_weights_once_and_normalised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []

    class Net(torch.nn.Module):
        pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}  # noqa: RUF012

        def __init__(self, trained: bool) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0 if trained else 1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * x.mean((2, 3)).abs()

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> Net:
        assert (name, num_classes) == ("some_net", 0)
        asked.append(pretrained)
        return Net(pretrained)

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    model = Classifier("ncm", backbone="timm:some_net").partial_fit(pictures("red", 2), "red")
    assert asked.count(True) == 1
    network = model.learner_.network
    assert float(network.state_dict()["module.scale"]) == 2.0
    assert network.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    model.save(tmp_path / "t.nocl")
    Classifier.load(tmp_path / "t.nocl")
    assert asked.count(True) == 1  # a saved model carries its weights
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"nocl\[timm\]"):
        Classifier("ncm", backbone="timm:some_net").partial_fit(pictures("red", 2), "red")


def test_fitting_from_a_folder_of_paths(tmp_path: Path) -> None:
    root = folder_of(tmp_path, {"red": 3, "blue": 3})
    paths = sorted(root.glob("*/*.png"))
    model = untaught().fit(paths, [path.parent.name for path in paths])
    assert model.counts_ == {"blue": 3, "red": 3}


def test_an_empty_model_is_saved_and_goes_on_like_any_other(tmp_path: Path) -> None:
    Classifier("ncm").save(tmp_path / "empty.nocl")
    model = Classifier.load(tmp_path / "empty.nocl")
    assert model.class_names == []
    with pytest.raises(NotFittedError):
        model.predict(pictures("red", 1))
    learned, fresh = (one.partial_fit(pictures("red", 2), "red") for one in (model, Classifier("ncm")))
    assert (learned.decision_function(pictures("red", 1)) == fresh.decision_function(pictures("red", 1))).all()
    with pytest.raises(NotFittedError, match="not trained yet"):
        Classifier("ncm", backbone="tiny_resnet18").save(tmp_path / "untrained.nocl")


@pytest.mark.parametrize(
    ("images", "names", "said"),
    [
        (pictures("red", 1), 7, "one class name or one for each image .* not 7"),
        (None, "red", "images must be arrays, .* not None"),
        ([], "red", "at least one picture"),
        ("no/such.jpg", "red", "no/such.jpg: no such file"),
    ],
)
def test_what_is_no_picture_or_name_is_told_what_was_expected(images: Any, names: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Classifier("ncm").partial_fit(images, names)
