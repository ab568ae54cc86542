"""What closed forms learn does not depend on how the images come: all streams of the same images end alike."""

import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nocl.arrivals import STREAMS
from nocl.checks import QUICK, easy_images
from nocl.data import Dataset, ImageSet
from nocl.learner import FrozenLearner, Learner
from nocl.methods import make
from nocl.run import run
from nocl.streams import arrange

CLASSES = 10
SAME_IMAGES = [name for name in STREAMS if name != "long_tailed"]  # which leaves images out
CLOSED_FORMS: dict[str, dict[str, object]] = {
    "ncm": {},
    "slda": {},
    "fecam": {},
    "ranpac": {"expansion": 64},
    "acil": {"expansion": 64},
    "rda": {},
}


@cache
def data() -> Dataset:
    train, test = easy_images(range(CLASSES), 8, seed=1), easy_images(range(CLASSES), 3, seed=2)
    sets = [ImageSet.of(batch.x.numpy(), batch.y.numpy()) for batch in (train, test)]
    return Dataset("easy", *sets, tuple(str(label) for label in range(CLASSES)))


def learned(method: str, stream: str, **params: object) -> Learner:
    settings = {**QUICK, "recipe": {"epochs": 1, "compile": False}, **params}
    learner = make(method, **settings)  # type: ignore[arg-type]
    run(learner, arrange(data(), stream, batch_size=7, base_batch_size=30, seed=3), cache=bases())
    return learner


@cache
def bases() -> Path:
    """A folder for base networks: each is trained once."""
    return Path(tempfile.mkdtemp(prefix="nocl-invariance-"))


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    shutil.rmtree(bases())


def by_label(learner: Learner) -> Tensor:
    """Scores [N, K] of the test images with columns in the order of the labels, which streams do not share."""
    x = data().test.take(np.arange(len(data().test))).x
    return learner.decision_function(x)[:, learner.classes_.argsort()].double()


@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_closed_forms_end_alike_on_every_stream(method: str) -> None:
    once = learned(method, "shuffled:base=60", **CLOSED_FORMS[method])
    wanted = by_label(once)
    spread = float(wanted.std())
    for name in SAME_IMAGES:
        other = learned(
            method, f"{name}:base=60" + (",sessions=2" if name == "disjoint" else ""), **CLOSED_FORMS[method]
        )
        assert isinstance(other, FrozenLearner)
        assert torch.allclose(by_label(other), wanted, atol=1e-2 * spread, rtol=0), name
        assert torch.equal(by_label(other).argmax(1), wanted.argmax(1)), name


def test_gradients_do_not() -> None:
    """The test above would notice: a method that learns by gradients ends elsewhere on every stream."""
    shuffled, ordered = (by_label(learned("finetune", f"{name}:base=60")) for name in ("shuffled", "ordered"))
    assert not torch.allclose(shuffled, ordered, atol=1e-2 * float(shuffled.std()), rtol=0)


def test_a_long_tail_is_other_images_and_ends_elsewhere() -> None:
    whole, tail = (by_label(learned("ncm", f"{name}:base=60")) for name in ("shuffled", "long_tailed"))
    assert not torch.allclose(whole, tail, atol=1e-2 * float(whole.std()), rtol=0)


def test_dsr_without_sessions_refines_every_so_many_batches() -> None:
    small = {"dim": 32, "iterations": 2, "samples": 3, "refine_every": 20}
    learner = learned("dsr", "shuffled:base=60", **small)
    assert not learner.uses_boundaries
    assert len(learner.log_["cosine_after"]) == 1  # type: ignore[arg-type]  # 32 images
    with pytest.raises(NotImplementedError, match="refine_every"):
        learned("dsr", "ordered:base=60", **{**small, "refine_every": 0})
