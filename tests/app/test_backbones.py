"""The classifier's networks: the default, how pictures are brought to size, small files, old models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nocl.app import backbones
from nocl.app.classifier import Classifier
from nocl.data.decode import decode, to_pixels
from nocl.learner import NotFittedError
from nocl.nets.imagenet import WHEELS
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.registry import UnknownNameError
from tests.support.practice_models import COLOURS, fitted, image_of, pictures

FIRST = Path("tests/fixtures/first_edition")


def _taught(**changes: object) -> Classifier:
    """ImageNet's network at a size that keeps the tests fast."""
    model = Classifier("ncm", **({"size": 64} | changes))  # type: ignore[arg-type]
    return model.partial_fit(pictures("red", 2, size=64), "red").partial_fit(pictures("blue", 2, size=64), "blue")


def test_the_default_is_an_imagenet_network_and_the_repr_says_so() -> None:
    model = Classifier()
    assert repr(model) == "Classifier(rda on efficientnet_lite0 at 160 px: 0 classes, 0 images)"
    model = _taught()
    assert repr(model) == "Classifier(ncm on efficientnet_lite0 at 64 px: 2 classes, 4 images)"
    assert model.predict(pictures("blue", 2, seed=3, size=64)).tolist() == ["blue", "blue"]
    assert model.learner_.base_["sha256"] == WHEELS["efficientnet_lite0"].sha256


def test_another_network_brings_its_own_size() -> None:
    model = Classifier()
    assert (model.size, model.fit_to_size) == (160, "photo")
    packaged = model.clone(backbone="cifar100")
    assert (packaged.size, packaged.fit_to_size) == (32, "crop")
    assert model.clone(backbone="cifar100", size=48).size == 48
    assert Classifier(backbone="efficientnet_lite0@128").size == 128


def test_photographs_are_cropped_as_the_networks_were_tested() -> None:
    ramp = np.zeros((300, 500, 3), dtype=np.uint8)
    ramp[..., 0], ramp[..., 1] = np.linspace(0, 255, 500)[None], np.linspace(0, 255, 300)[:, None]
    image = Image.fromarray(ramp)
    short = round(160 * 256 / 224)
    whole = image.resize((round(500 * short / 300), short), Image.Resampling.BICUBIC)
    left, top = (whole.width - 160) / 2, (whole.height - 160) / 2
    expected = np.asarray(whole.crop((round(left), round(top), round(left) + 160, round(top) + 160)))
    found = to_pixels(image, 160, "photo").transpose(1, 2, 0)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 2
    narrow = to_pixels(Image.new("RGB", (4000, 3), "red"), 64, "photo")  # no picture of 85,000 x 64 px on the way
    assert narrow.shape == (3, 64, 64)


def test_the_way_to_size_is_kept_in_the_file(tmp_path: Path) -> None:
    photo = image_of(torch.cat([pictures("red", 1, size=90)[0], pictures("blue", 1, size=90)[0]], 1))
    model = _taught()
    model.save(tmp_path / "m.nocl")
    again = Classifier.load(tmp_path / "m.nocl")
    assert again.fit_to_size == "photo"
    np.testing.assert_array_equal(again.decision_function(photo), model.decision_function(photo))
    np.testing.assert_array_equal(again.read(photo)[0].numpy(), to_pixels(photo, 64, "photo"))


def test_a_file_may_name_the_network_instead_of_holding_it(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.nocl", tmp_path / "small.nocl"
    model = _taught()
    model.save(whole)
    model.save(small, network="name")
    assert whole.stat().st_size > 13_000_000 > 100_000 > small.stat().st_size
    again = Classifier.load(small)
    x = pictures("grey", 3, size=64)
    np.testing.assert_array_equal(again.decision_function(x), model.decision_function(x))
    again.save(small)  # as it came
    assert small.stat().st_size < 100_000
    with pytest.raises(ValueError, match="not installed under a name"):
        fitted().save(tmp_path / "t.nocl", network="name")


def test_a_named_network_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _taught(backbone="cifar100", size=32)
    with torch.no_grad():
        model.learner_.network.get_parameter("conv1.weight").add_(1)
    model.save(tmp_path / "m.nocl", network="name")
    with pytest.raises(DamagedFileError, match="made on another cifar100 than the one installed here"):
        Classifier.load(tmp_path / "m.nocl")


def test_a_model_of_the_first_edition_predicts_as_before() -> None:
    model = Classifier.load(FIRST / "model-rda.nocl")
    x = torch.cat([pictures(name, 4, seed=9) for name in COLOURS])
    expected = json.loads((FIRST / "expected.json").read_text())["model-rda.nocl"]
    assert model.predict(x).tolist() == expected["predict"]
    assert (model.size, model.fit_to_size) == (32, "crop")
    photo = image_of(pictures("red", 1, size=57)[0])
    np.testing.assert_array_equal(model.read(photo)[0].numpy(), to_pixels(photo, 32))
    assert model.partial_fit(photo, "new").class_names[-1] == "new"


def test_own_networks_with_trained_weights_learn_at_once(tmp_path: Path) -> None:
    own = "tests.support.own_networks"
    model = Classifier("rda", backbone=f"{own}:trained")
    model.partial_fit(pictures("red", 3), "red").partial_fit(pictures("blue", 3), "blue")
    assert model.predict(pictures("red", 2, seed=4)).tolist() == ["red", "red"]
    with pytest.raises(NotFittedError, match="is not trained yet"):
        Classifier("rda", backbone=f"{own}:untrained").partial_fit(pictures("red", 1), "red")
    model.save(tmp_path / "own.nocl")
    with pytest.raises(DamagedFileError, match="trust"):
        Classifier.load(tmp_path / "own.nocl")
    assert Classifier.load(tmp_path / "own.nocl", trust=True).class_names == ["red", "blue"]


def test_a_wrong_backbone_is_told_all_that_is_right() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Classifier(backbone="cifar10")
    words = str(caught.value)
    for right in ("did you mean 'cifar100'?", "efficientnet_lite0", "efficientnet_lite2", "reduced_resnet18",
                  "timm:NAME", "module:factory", "FILE.safetensors"):  # fmt: skip
        assert right in words
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors: no such file"):
        backbones.find("gone.safetensors")
    with pytest.raises(ValueError, match="EfficientNet-Lite takes 32 px a side or more"):
        Classifier(size=16).partial_fit(pictures("red", 1, size=16), "red")


def test_uploads_take_the_way_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    testing = pytest.importorskip("fastapi.testclient", reason="the test client needs httpx")
    from nocl.app.serve.app import build
    from nocl.app.serve.store import Store

    model = _taught()
    model.save(tmp_path / "m.nocl")
    photo = image_of(torch.cat([pictures("red", 1, size=90)[0], pictures("blue", 1, size=90)[0]], 2))
    photo.save(tmp_path / "p.png")
    expected = model.calibration_.probabilities(torch.from_numpy(model.decision_function(photo)))[0].max()
    cropped = torch.from_numpy(decode(tmp_path / "p.png", 64))[None]
    other = model.calibration_.probabilities(torch.from_numpy(model.decision_function(cropped)))[0].max()
    with testing.TestClient(build(Store(tmp_path / "m.nocl")), base_url="http://127.0.0.1:8000") as web:
        files = [("images", ("p.png", (tmp_path / "p.png").read_bytes(), "image/png"))]
        found = web.post("/predict", files=files).json()["predictions"][0]["top"][0]["probability"]
    assert abs(float(expected) - float(other)) > 1e-3  # the two ways differ
    assert found == pytest.approx(float(expected), abs=1e-4)
