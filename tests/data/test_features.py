"""Features of a data set: computed once for each network, and kept by what they depend on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nocl import nets
from nocl.checks import easy_images
from nocl.data import Dataset, ImageSet
from nocl.data import features as feature_module
from nocl.data.features import FeatureData, extract, trained_classes
from nocl.experiments.job import Job
from nocl.methods.ncm import NCM
from nocl.plumbing.files import write_tensors
from nocl.pretrain import WrongBaseError
from nocl.streams import class_incremental
from tests.support.given_network import ORDER, PARTITION, tiny


def test_cached_features_are_those_of_the_network(features: FeatureData, checkpoint: Path) -> None:
    learner = NCM(backbone="tiny_resnet18", weights=str(checkpoint))
    base = class_incremental(tiny(), partition=PARTITION).base
    learner.fit_base(base)
    x, _ = tiny().test.take([5, 17])
    cached, _ = features.test.take([5, 17])
    torch.testing.assert_close(learner.features(x), cached, atol=1e-5, rtol=1e-5)
    assert isinstance(features.train.images, np.memmap)
    assert trained_classes(checkpoint) == tuple(ORDER[:6])


def test_features_are_computed_once_for_each_network_and_again_if_left_unfinished(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny()
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    calls: list[str] = []
    real = feature_module._write_features
    monkeypatch.setattr(
        feature_module, "_write_features", lambda path, *rest: (calls.append(path.name), real(path, *rest))[1]
    )
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    assert not calls
    next(tmp_path.glob("*/about.json")).unlink()
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    assert calls == ["train.npy", "test.npy"]
    other = tmp_path / "other.safetensors"
    write_tensors(other, nets.build("tiny_resnet18", seed=4).state_dict(), {"classes": ORDER[:6]})
    extract(data, other, cache=tmp_path, backbone="tiny_resnet18")
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18", stages=[3, 4])
    assert len(list(tmp_path.glob("features-*"))) == 3


def few() -> Dataset:
    """Four classes of four easy images."""
    sets = [ImageSet.of(x.numpy(), y.numpy()) for x, y in (easy_images(range(4), n, n) for n in (3, 1))]
    return Dataset("few", *sets, class_names=tuple("abcd"))


def test_weights_that_belong_to_a_name_need_no_file_and_each_engine_keeps_its_features(tmp_path: Path) -> None:
    job = Job(
        "rda", {"backbone": "efficientnet_lite0@96"}, dataset="tests.data.test_features:few",
        partition="50+25x2", network_from="pretrained", feature_cache=str(tmp_path),
    )  # fmt: skip
    result = job.run()
    assert result.base["weights"] == "efficientnet-lite0-57934424.pth"
    assert result.stream["network_classes_unknown"] is True
    assert result.stream["features"]["stages"] == [3, 4, 5]  # type: ignore[index, call-overload]
    assert len(list(tmp_path.glob("features-*"))) == 1
    faster = replace(job, engine="onnx")
    torch.testing.assert_close(
        torch.from_numpy(np.array(faster.stream().data.train.images)),
        torch.from_numpy(np.array(job.stream().data.train.images)), atol=1e-4, rtol=1e-4,
    )  # fmt: skip
    assert len(list(tmp_path.glob("features-*"))) == 2
    with pytest.raises(WrongBaseError, match="'tiny_resnet18' has no weights of its own"):
        replace(job, params={"backbone": "tiny_resnet18"}).stream()
