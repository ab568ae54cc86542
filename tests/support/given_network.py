"""A small data set, a network file trained on some of its classes, and a run on that network's features.

The fixtures, which ``tests/conftest.py`` makes known, are ``checkpoint``, ``feature_cache``, ``features`` and ``like``.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl import nets
from nocl.checks import easy_images
from nocl.data import Dataset, ImageSet
from nocl.data.features import FeatureData, extract
from nocl.experiments.job import Job
from nocl.methods import METHODS
from nocl.plumbing.files import write_tensors

PARTITION = "60+20x2"  # of ten classes: six, then two sessions of two


ORDER = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()


def tiny() -> Dataset:
    """Ten classes of easy images."""
    sets = []
    for n, seed in ((24, 1), (4, 2)):
        x, y = easy_images(range(10), n, seed)
        noise = torch.randint(60, x.shape, generator=torch.Generator().manual_seed(seed))
        sets.append(ImageSet.of((x // 2 + noise).to(torch.uint8).numpy(), y.numpy()))
    return Dataset("tiny", *sets, class_names=tuple("abcdefghij"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "tiny.safetensors"
    network = nets.build("tiny_resnet18", seed=3)
    write_tensors(path, network.state_dict(), {"classes": ORDER[:6]})
    return path


@pytest.fixture(scope="module")
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def features(checkpoint: Path, feature_cache: Path) -> FeatureData:
    return extract(tiny(), checkpoint, cache=feature_cache, backbone="tiny_resnet18")


@pytest.fixture
def like(checkpoint: Path, feature_cache: Path) -> Job:
    """A run of NCM on the stored features; the others are made from it."""
    return Job(
        "ncm", {"backbone": "tiny_resnet18"}, dataset="tests.support.given_network:tiny", partition=PARTITION,
        network_from=str(checkpoint), feature_cache=str(feature_cache), order_seed=0,
    )  # fmt: skip


def method(like: Job, name: str, **params: Any) -> Job:
    """The job with another method and its quick parameters."""
    return replace(like, method=name, params={**like.params, **METHODS[name].check_params, **params})
