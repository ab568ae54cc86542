"""What the tests of the replay methods share: stored values of the public codes, and learners after a base session.

``tests/fixtures/replay.json`` says where each value comes from. Where the reference is wrong it has the corrected
value. Tolerances: float64 1e-9 (OCM 1e-6: its reference adds 1e-8 here and there), float32 2e-5, integers exact.
"""

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nocl.checks import BASE_LABELS, QUICK, easy_images, split
from nocl.learner import Learner
from nocl.methods import METHODS
from nocl.plumbing.types import JSON

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "fixtures" / "replay.json").read_text())["cases"]


def cases(*prefixes: str) -> Any:
    """Parametrize by all cases with these prefixes."""
    chosen = [case for case in CASES if case["id"].startswith(prefixes)]
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def exact(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(got: Tensor, wanted: object, tolerance: float) -> None:
    torch.testing.assert_close(got.detach().double(), exact(wanted), atol=tolerance, rtol=0)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


SHORT: dict[str, JSON] = {**QUICK, "recipe": {"epochs": 2, "lr": 0.05, "compile": False}}


def fitted(name: str, **params: JSON) -> Any:
    """A learner after a base session of 4 classes with 6 images each; trained once, then copied."""
    return copy.deepcopy(_fitted_once(name, json.dumps(params)))


@lru_cache(maxsize=32)
def _fitted_once(name: str, settings: str) -> Any:
    cls, params = METHODS[name], json.loads(settings)
    learner = cls(**{**SHORT, **cls.check_params, **params})  # type: ignore[arg-type]
    return learner.fit_base(split(easy_images(BASE_LABELS, 6, seed=1), 8))


def changed(before: Learner, after: Learner) -> set[str]:
    """First parts of the names of parameters and buffers that moved."""
    old, new = before.state_dict(), after.state_dict()
    same_shape = [name for name in old if old[name].shape == new[name].shape]
    return {name.split(".")[0] for name in same_shape if not torch.equal(old[name], new[name])}
