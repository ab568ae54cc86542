"""Forgetting a class and joining learners, for every method that says it can."""

import pytest
import torch

from nocl.learner import FrozenLearner, Learner, UnsupportedError
from nocl.methods import METHODS, make

MERGEABLE = [name for name in METHODS if make(name, backbone="tiny_resnet18").mergeable]
FORGETS = [name for name in MERGEABLE if make(name, backbone="tiny_resnet18").forgets_exactly]


def features(seed: int, n: int, dim: int) -> torch.Tensor:
    return torch.rand(n, dim, generator=torch.Generator().manual_seed(seed)) + 0.1


def taught(name: str, lessons: list[tuple[int, int, int]]) -> FrozenLearner:
    """A learner on features; a lesson is (seed, label, number of images)."""
    learner = make(name, backbone="tiny_resnet18")
    assert isinstance(learner, FrozenLearner)
    for seed, label, n in lessons:
        learner.learn(features(seed, n, learner.feature_dim), torch.full((n,), label))
    return learner


def assert_close(a: Learner, b: Learner) -> None:
    mine, theirs = a.state_dict(), b.state_dict()
    assert mine.keys() == theirs.keys()
    for key in mine:
        if key != "_extra_state":
            torch.testing.assert_close(mine[key], theirs[key], rtol=1e-5, atol=1e-6)  # rda keeps float32


def test_the_methods_for_practice_are_mergeable() -> None:
    assert {"ncm", "fecam", "rda"} <= set(FORGETS)
    assert {"slda", "ranpac"} <= set(MERGEABLE)
    assert "finetune" not in MERGEABLE


@pytest.mark.parametrize("name", MERGEABLE)
def test_merging_equals_having_seen_everything(name: str) -> None:
    first, second = [(1, 7, 5), (2, 3, 4)], [(3, 3, 6), (4, 9, 2)]
    joined = taught(name, first)
    joined.merge(taught(name, second))
    whole = taught(name, first + second)
    assert joined.classes_.tolist() == [7, 3, 9]
    assert_close(joined, whole)
    z = features(5, 3, whole.feature_dim)
    torch.testing.assert_close(joined.score(z), whole.score(z), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", FORGETS)
def test_forgetting_leaves_the_learner_that_never_met_the_class(name: str) -> None:
    learner = taught(name, [(1, 7, 5), (2, 3, 4), (3, 9, 6)])
    learner.forget(3)
    assert learner.forgets_exactly
    assert learner.classes_.tolist() == [7, 9]
    assert_close(learner, taught(name, [(1, 7, 5), (3, 9, 6)]))
    learner.learn(features(6, 3, learner.feature_dim), torch.tensor([3, 9, 3]))
    assert learner.classes_.tolist() == [7, 9, 3]


@pytest.mark.parametrize("name", MERGEABLE)
def test_subtracting_undoes_merging(name: str) -> None:
    part = taught(name, [(3, 3, 6), (4, 9, 2)])
    learner = taught(name, [(1, 7, 5), (2, 3, 4), (5, 9, 3)])
    before = taught(name, [(1, 7, 5), (2, 3, 4), (5, 9, 3)])
    learner.merge(part)
    learner.subtract(part)
    assert_close(learner, before)
    with pytest.raises(ValueError, match="more samples"):
        learner.subtract(taught(name, [(1, 7, 50)]))


@pytest.mark.parametrize("name", MERGEABLE)
def test_an_empty_copy_shares_the_network_and_nothing_else(name: str) -> None:
    learner = taught(name, [(1, 7, 5)])
    empty = learner.empty_copy()
    assert empty.network is learner.network
    assert len(empty.classes_) == 0
    empty.learn(features(2, 2, learner.feature_dim), torch.tensor([7, 7]))
    assert_close(learner, taught(name, [(1, 7, 5)]))


def test_dsr_forgets_every_statistic_of_a_class_and_says_that_its_projection_keeps_a_trace() -> None:
    settings = {"backbone": "tiny_resnet18", "dim": 32, "iterations": 3, "samples": 4}
    learner = make("dsr", **settings)
    assert isinstance(learner, FrozenLearner)
    for seed, label, n in [(1, 7, 5), (2, 3, 4), (3, 9, 6)]:
        learner.learn(features(seed, n, learner.feature_dim), torch.full((n,), label))
    learner.end_session()
    before = {name: value.clone() for name, value in learner.state_dict().items() if name != "_extra_state"}
    learner.forget(3)
    assert learner.classes_.tolist() == [7, 9]
    for stats in ("vanilla", "high"):
        assert torch.equal(learner.state_dict()[f"{stats}.mean"], before[f"{stats}.mean"][[0, 2]])
    assert not learner.forgets_exactly
    assert not learner.mergeable
    z = features(4, 3, learner.feature_dim)
    assert learner.score(z).shape == (3, 2)
    learner.learn(z, torch.tensor([3, 9, 3]))
    learner.end_session()
    assert learner.classes_.tolist() == [7, 9, 3]


def test_forgetting_that_would_leave_a_trace_is_refused_where_exactness_is_asked_for() -> None:
    for storage, exactly in (("full", True), ("shared", False)):
        learner = make("rda", backbone="features:6", storage=storage)
        assert isinstance(learner, FrozenLearner)
        learner.learn(features(1, 8, 6), torch.tensor([0, 1] * 4))
        if exactly:
            learner.forget(0, exact=True)
            assert learner.classes_.tolist() == [1]
            continue
        with pytest.raises(UnsupportedError, match=r"without a trace.*storage='full'"):
            learner.forget(0, exact=True)
        assert learner.classes_.tolist() == [0, 1]
        learner.forget(0)
        assert learner.classes_.tolist() == [1]


def test_a_method_that_trains_its_network_says_what_it_cannot_do() -> None:
    learner = make("finetune", backbone="tiny_resnet18")
    with pytest.raises(UnsupportedError, match="Finetune as it is set cannot forget a class"):
        learner.forget(0)
    with pytest.raises(UnsupportedError, match="ncm"):
        learner.merge(make("finetune", backbone="tiny_resnet18"))


def test_learners_on_different_networks_or_settings_do_not_merge() -> None:
    learner = make("ncm", backbone="tiny_resnet18")
    with pytest.raises(ValueError, match="networks differ"):
        learner.merge(make("ncm", backbone="tiny_resnet18", seed=1))
    with pytest.raises(ValueError, match=r"power is 0\.5 here and 1\.0 there"):
        learner.merge(make("ncm", backbone="tiny_resnet18", power=1.0))
    with pytest.raises(ValueError, match="FeCAM into NCM"):
        learner.merge(make("fecam", backbone="tiny_resnet18"))
