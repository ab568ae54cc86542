"""How rda stores covariances (full, shared, mean, low rank) and shortlists classes: each against the exact one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.checks import LEARNER_CHECKS
from nocl.methods._saving import load, save
from nocl.methods.rda.covariances import ClassShapes
from nocl.methods.rda.method import RDA
from nocl.methods.rda.shortlist import Shortlist
from nocl.plumbing.seeding import generator
from nocl.stats.class_stats import ClassStats, tukey
from tests.support.rda_cases import D, gaussians, rda, relative, taught


def test_packed_triangle_is_close_to_float64_and_half_the_size() -> None:
    z, y = gaussians([300])
    learner = taught(rda(), z, y)
    exact = torch.cov(((z.double() + 1e-6) ** learner.power).T) * 299
    packed = learner.shapes.scatter(torch.tensor([0]), learner.stats.count)[0]
    assert float((packed - exact).norm() / exact.norm()) < 1e-6
    assert learner.shapes.triangle.numel() == D * (D + 1) // 2
    assert learner.shapes.triangle.dtype == torch.float32


@pytest.mark.parametrize("dim", [1, 2, 7, 8])
def test_a_triangle_by_diagonals_holds_each_pair_once_and_is_saved_by_rows(dim: int) -> None:
    draw = generator(3, "diagonals")
    z = torch.randn(40, dim, generator=draw, dtype=torch.float64)
    shapes, stats = ClassShapes(dim), ClassStats(dim, "shared")
    shapes.grow(1)
    stats.grow(1)
    for part in z.split([1, 2, 5, 30, 2]):  # one by one, and as a product
        shapes.update(part, torch.zeros(len(part), dtype=torch.int64), stats)
        stats.update(part, torch.zeros(len(part), dtype=torch.int64))
    exact = (z - z.mean(0)).T @ (z - z.mean(0))
    torch.testing.assert_close(shapes.scatter(torch.tensor([0]), stats.count)[0], exact, rtol=1e-5, atol=1e-5)
    saved = shapes.state_dict()["triangle"][0].double()
    rows, columns = torch.triu_indices(dim, dim)
    torch.testing.assert_close(saved, exact[rows, columns], rtol=1e-5, atol=1e-5)
    again = ClassShapes(dim)
    again.grow(1)
    again.load_state_dict(shapes.state_dict())
    assert torch.equal(again.triangle, shapes.triangle)


def test_shared_storage_is_the_limit_of_a_large_prior() -> None:
    z, y = gaussians([20, 50, 50])
    query = gaussians([5] * 3, seed=1)[0]
    limit = taught(rda(prior=1e9, shortlist=None), z, y)
    shared = taught(rda(storage="shared"), z, y)
    torch.testing.assert_close(shared.score(query), limit.score(query), rtol=2e-3, atol=2e-2)


def test_mean_storage_is_the_nearest_mean() -> None:
    z, y = gaussians([20, 50, 50])
    query = gaussians([5] * 3, seed=1)[0]
    learner = taught(rda(storage="mean", power=1), z, y)
    means = torch.stack([z[y == c].mean(0) for c in learner.classes_.tolist()])
    torch.testing.assert_close(learner.score(query), -torch.cdist(query, means).square(), rtol=1e-3, atol=1e-2)
    assert learner.stats.scatter.numel() == 0


def test_full_rank_is_as_good_as_the_triangle() -> None:
    z, y = gaussians([40, 80, 160])
    query = gaussians([5] * 3, seed=1)[0]
    full = taught(rda(shortlist=None), z, y)
    low = taught(rda(storage="lowrank", rank=D, shortlist=None), z, y)
    torch.testing.assert_close(low.score(query), full.score(query))
    low.end_session()
    assert len(low.shapes.triangle) == 0
    found, expected = (relative(learner.score(query)) for learner in (low, full))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-1)  # V_c is diagonal elsewhere


def test_rank_zero_is_the_shared_covariance() -> None:
    z, y = gaussians([40, 80])
    low = taught(rda(storage="lowrank", rank=0), z, y)
    low.end_session()
    scatter = low.shapes.scatter(torch.tensor([1]), low.stats.count)[0]
    torch.testing.assert_close(scatter / (low.stats.count[1] - 1), low.shared_covariance(), rtol=1e-5, atol=1e-7)


def test_more_rank_comes_closer_to_the_full_covariance() -> None:
    z, y = gaussians([150, 150, 150])
    query = gaussians([20] * 3, seed=1)[0]
    exact = relative(taught(rda(shortlist=None), z, y).score(query))
    errors = []
    for rank in (0, 10, 40, D):
        low = taught(rda(storage="lowrank", rank=rank, shortlist=None), z, y)
        low.end_session()
        errors.append(float((relative(low.score(query)) - exact).abs().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * errors[0]


def test_a_low_rank_class_goes_on_from_where_it_was() -> None:
    z, y = gaussians([40, 80])
    parted, straight = rda(storage="lowrank", rank=D), rda(storage="lowrank", rank=D)
    taught(parted, z[:70], y[:70]).end_session()
    taught(parted, z[70:], y[70:]).end_session()
    taught(straight, z, y).end_session()
    query = gaussians([5] * 2, seed=1)[0]
    torch.testing.assert_close(parted.score(query), straight.score(query), rtol=1e-2, atol=1e-2)


def alike(n: int, images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positive features of classes whose means lie close and whose sizes and shapes differ: hard to shortlist."""
    draw, z = generator(seed, "alike"), []
    for c in range(n):
        own = generator(c, "alike shape")
        mixing = (0.5 + c % 3) * torch.randn(D, D, generator=own) / D**0.5
        z.append(torch.randn(images, D, generator=draw) @ mixing + 0.2 * torch.randn(D, generator=own))
    return (torch.cat(z) + 10).clamp_min(0), torch.arange(n).repeat_interleave(images)


@pytest.mark.parametrize(
    ("params", "agreement"),
    [({}, 0.99), ({"storage": "lowrank", "rank": 12}, 0.95)],
)
def test_shortlist_gives_the_exhaustive_answer_and_ranks_the_rest_below(
    params: dict[str, object], agreement: float
) -> None:
    z, y = alike(48, 40)
    query = alike(48, 10, seed=1)[0]
    every, short = (taught(rda(shortlist=m, prior=0.3, power=1.0, **params), z, y, size=480) for m in (None, 16))
    every.end_session()
    short.end_session()
    exact, scores = every.score(query), short.score(query)
    assert float((exact.argmax(1) == scores.argmax(1)).double().mean()) > agreement
    ranked = scores.sort(1, descending=True).values
    assert bool((ranked[:, 15] - ranked[:, 16] > 0.9).all())  # a step between the exact ones and the rest
    listed = scores.topk(16).indices
    torch.testing.assert_close(scores.gather(1, listed), exact.gather(1, listed), rtol=1e-3, atol=1e-2)


def test_shared_scores_alone_would_miss_what_the_shortlist_finds() -> None:
    z, y = alike(48, 40)
    query = alike(48, 10, seed=1)[0]
    learner = taught(rda(shortlist=10, prior=0.3, power=1.0), z, y, size=480)
    learner.score(query)
    rule = learner._rule._value
    assert rule is not None
    learner.shortlist = None
    best = learner.score(query).argmax(1, keepdim=True)
    u = rule.coordinates(query)
    missed = [
        float((rule.score_of(distance).topk(10).indices != best).all(1).double().mean())
        for distance in (rule.plain_distances(u), rule.rough_distances(u))
    ]
    assert missed[0] > 0.1
    assert missed[1] < 0.01


def test_shortlist_of_all_classes_is_the_exhaustive_search() -> None:
    z, y = gaussians([30] * 5)
    query = gaussians([5] * 5, seed=1)[0]
    every = taught(rda(shortlist=None), z, y).score(query)
    for m in (5, 50):
        assert torch.equal(taught(rda(shortlist=m), z, y).score(query), every)


def test_shortlist_distances_are_exact_with_as_many_quadrics_as_classes() -> None:
    draw = generator(0, "quadrics")
    mixing = torch.randn(9, 6, 12, generator=draw)
    precisions, means = mixing @ mixing.mT, torch.randn(9, 6, generator=draw)
    table = Shortlist(means, torch.rand(6, generator=draw) + 0.5, lambda part: precisions[part])
    u = torch.randn(700, 6, generator=draw)
    away = u[:, None] - means
    expected = (away[:, :, None] @ precisions @ away[:, :, :, None])[:, :, 0, 0]
    torch.testing.assert_close(table.distances(u), expected, rtol=1e-4, atol=1e-3)


def test_low_rank_scores_equal_those_of_the_dense_covariances() -> None:
    z, y = gaussians([1, 2, 40, 80])
    more, labels = gaussians([0, 3, 9, 30], seed=3)
    learner = rda(storage="lowrank", rank=5, shortlist=None, degrees=1e9, caution=0)
    taught(learner, z, y).end_session()
    taught(learner, more, labels).end_session()  # the shared covariance has left the reference behind
    query = gaussians([5] * 4, seed=1)[0]
    rule = learner._derive()
    rule.lacking.zero_()  # that like is compared with like is another matter
    covariances = rule.means.turn @ learner.class_covariances(torch.arange(4)) @ rule.means.turn.T
    covariances = covariances + torch.diag_embed(rule.means.variance)
    away = rule.coordinates(tukey(query, learner.power)).double()[:, None] - rule.means.mean
    distance = (away[:, :, None] @ torch.linalg.inv(covariances) @ away[:, :, :, None])[:, :, 0, 0]
    expected = relative(-distance - rule.offset.double())
    found = rule.scores(tukey(query, learner.power)).double()
    torch.testing.assert_close(relative(found), expected, rtol=1e-3, atol=1e-2)


def test_low_rank_learner_saved_between_and_within_sessions_goes_on_bit_for_bit(tmp_path: Path) -> None:
    z, y = gaussians([20, 20, 20])
    straight, broken = rda(storage="lowrank", rank=3), rda(storage="lowrank", rank=3)
    for cut in (25, 40, 60):
        for learner in (straight, broken):
            taught(learner, z[cut - 20 : cut], y[cut - 20 : cut])
        if cut == 40:
            straight.end_session()
            broken.end_session()
        save(broken, tmp_path / "learner.safetensors")
        broken = load(tmp_path / "learner.safetensors")  # type: ignore[assignment]
    assert all(torch.equal(a, b) for a, b in zip(straight.state_dict().values(), broken.state_dict().values()))
    assert torch.equal(straight.score(z), broken.score(z))


@pytest.mark.parametrize("check", LEARNER_CHECKS)
def test_low_rank_storage_keeps_the_contract(check: str) -> None:
    LEARNER_CHECKS[check](RDA, {"storage": "lowrank", "rank": 2})
