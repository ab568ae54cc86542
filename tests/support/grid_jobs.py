"""Small jobs for the engines of a grid."""

from nocl.experiments.grid import Engine
from nocl.experiments.job import Job
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from tests.support.grid_methods import TIMES

TINY: dict[str, JSON] = {"n_classes": 10, "train_per_class": 6, "test_per_class": 2}


QUICK: dict[str, JSON] = {"backbone": "tiny_resnet18", "recipe": {"epochs": 1, "compile": False}}


TWO = Engine(workers=2, threads=1)


def job(method: str = "ncm", seed: int = 0, **params: JSON) -> Job:
    return Job(method, {**QUICK, **params}, options=TINY, partition="60+20x2", seed=seed, base_batch_size=20)


def measured(result: RunResult | None) -> dict[str, object]:
    assert result is not None
    return {name: value for name, value in result.to_json().items() if name not in TIMES}
