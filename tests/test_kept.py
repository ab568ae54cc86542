"""What ``kept()`` says is compared with the shapes of the state."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nocl.checks import CheckError
from nocl.checks.kept import kept_says_what_is_stored
from nocl.learner import FrozenLearner
from nocl.methods import METHODS
from nocl.methods.fecam import FeCAM
from nocl.methods.ncm import NCM
from nocl.stats.class_stats import ClassStats


class Projected(FrozenLearner):
    """Nearest mean in a random projection, wide enough for a covariance's numbers."""

    statistics = ("stats",)
    projection: Tensor
    width = 4096

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.register_buffer("projection", torch.randn(self.feature_dim, self.width, generator=self.draw))
        self.stats = ClassStats(self.width)

    def grow(self, n: int) -> None:
        self.stats.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.stats.update((z @ self.projection).relu(), self.columns(y))

    def score(self, z: Tensor) -> Tensor:
        return (z @ self.projection).relu() @ self.stats.mean.to(z).T


class SilentCovariance(FeCAM):
    def kept(self) -> str:
        return "of each class: count and mean of its features"


class SaysTooMuch(NCM):
    def kept(self) -> str:
        return "of each class: count, mean and covariance of its features"


def test_a_wide_mean_is_no_covariance() -> None:
    kept_says_what_is_stored(Projected, {})


def test_a_covariance_that_kept_does_not_name_is_named_with_its_shape() -> None:
    with pytest.raises(
        CheckError, match=r"covariance of each class, by its shape: stats\.scatter \[6, .*override kept\(\)"
    ):
        kept_says_what_is_stored(SilentCovariance, {})


def test_a_covariance_that_is_not_there_must_not_be_named() -> None:
    with pytest.raises(CheckError, match=r"no state has the shape of a covariance of each class; override kept\(\)"):
        kept_says_what_is_stored(SaysTooMuch, {})


@pytest.mark.parametrize("storage", ["full", "lowrank", "sketch", "shared", "mean"])
def test_every_storage_of_rda_says_what_it_is(storage: str) -> None:
    kept_says_what_is_stored(METHODS["rda"], {"storage": storage})
