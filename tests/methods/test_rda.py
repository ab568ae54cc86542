"""Streaming regularised discriminant analysis: against its formula, in any order, in little space."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.checks import LEARNER_CHECKS
from nocl.methods._saving import load, save
from nocl.methods.rda.method import RDA
from nocl.methods.rda.shortlist import Shortlist
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import tukey

D = 8 * (2 + 4 + 8)  # tiny_resnet18, stages 2, 3, 4


def rda(**params: object) -> RDA:
    return RDA(**{"backbone": "tiny_resnet18", **params})  # type: ignore[arg-type]


def gaussians(counts: list[int], seed: int = 0, dim: int = D) -> tuple[Tensor, Tensor]:
    """Positive features of classes with shapes of their own, shuffled."""
    draw = generator(seed, "gaussians")
    z, y = [], []
    for c, n in enumerate(counts):
        own = generator(c, "shape")
        mixing = torch.randn(dim, dim, generator=own) / dim**0.5
        z.append((torch.randn(n, dim, generator=draw) @ mixing + 1.5 * torch.randn(dim, generator=own)).abs())
        y += [c] * n
    order = torch.randperm(len(y), generator=draw)
    return torch.cat(z)[order], torch.tensor(y)[order]


def taught(learner: RDA, z: Tensor, y: Tensor, size: int = 10) -> RDA:
    for part, labels in zip(z.split(size), y.split(size)):
        learner.learn(part, labels)
    return learner


def by_formula(z: Tensor, y: Tensor, query: Tensor, prior: float, ridge: float, power: float = 0.5) -> Tensor:
    """Scores as the module docstring writes them, one class at a time, in float64."""
    z, query = (z.double() + 1e-6) ** power, (query.double() + 1e-6) ** power
    classes = list(dict.fromkeys(y.tolist()))
    deviations = torch.cat([z[y == c] - z[y == c].mean(0) for c in classes])
    shared = deviations.T @ deviations / (len(z) - len(classes))
    eye = torch.eye(z.shape[1], dtype=torch.float64)
    missing = max(0, 1 - (len(z) - len(classes)) / (10 * z.shape[1]))
    shared = (1 - missing) * shared + missing * shared.trace() / len(eye) * eye
    scores = []
    for c in classes:
        own = z[y == c]
        images = prior * z.shape[1]
        weight = images / (len(own) - 1 + images)
        covariance = weight * shared + ridge * shared.trace() / len(eye) * eye
        if len(own) > 1:
            covariance = covariance + (1 - weight) * torch.cov(own.T)
        away = query - own.mean(0)
        scores.append(-(away @ torch.linalg.inv(covariance) * away).sum(1))
    return torch.stack(scores, 1)


@pytest.mark.parametrize("many", [60, 600])  # the shared covariance is known in part, and wholly
def test_scores_equal_the_formula_for_classes_of_one_to_many_images(many: int) -> None:
    z, y = gaussians([1, 2, 5, many, 2 * many])
    query = gaussians([4] * 5, seed=1)[0]
    for prior, ridge in ((0.2, 0.01), (0.01, 0.1), (100.0, 0.0001)):
        learner = taught(rda(prior=prior, ridge=ridge, shortlist=None, unbiased=False), z, y)
        torch.testing.assert_close(
            learner.score(query).double(), by_formula(z, y, query, prior, ridge), rtol=2e-3, atol=1e-2
        )


def test_hand_computed_distance_in_one_dimension() -> None:
    learner = rda(power=1, prior=2 / 16, ridge=0, shortlist=None, stages=(2,), unbiased=False)
    d = learner.feature_dim
    assert d == 16  # so the prior is 2 images
    z, y = torch.zeros(5, d), torch.tensor([0, 0, 0, 1, 1])
    z[:, 0] = torch.tensor([1.0, 3.0, 5.0, 8.0, 10.0])
    learner.learn(z, y)
    # class 0: mean 3, scatter 8; class 1: mean 9, scatter 2; S = 10 / (5 - 2), of which 3 / 160 counts as known and the
    # rest is spread over 16 dimensions
    shared = 10 / 3 * (3 / 160 + 157 / 160 / 16)
    variance = torch.tensor([(8 + 2 * shared) / (2 + 2), (2 + 2 * shared) / (1 + 2)])
    tiny = 1e-6  # the floor under the ridge
    expected = -torch.tensor([[(6 - 3) ** 2, (6 - 9) ** 2]]) / (variance + tiny)
    query = torch.zeros(1, d)
    query[0, 0] = 6.0
    torch.testing.assert_close(learner.score(query), expected, rtol=1e-4, atol=1e-4)


def test_few_images_of_few_classes_do_not_follow_a_singular_covariance() -> None:
    """40 images of 6 spherical classes in 112 dimensions: the nearest mean is the best rule, and rda is close to it."""
    draw = generator(3, "spheres")
    means = torch.rand(6, D, generator=draw) + 2
    z, y = (
        means.repeat_interleave(40, 0) + 0.6 * torch.randn(240, D, generator=draw),
        torch.arange(6).repeat_interleave(40),
    )
    query, truth = (
        means.repeat_interleave(50, 0) + 0.6 * torch.randn(300, D, generator=draw),
        torch.arange(6).repeat_interleave(50),
    )
    learner = taught(rda(power=1.0), z.abs(), y)
    nearest = torch.cdist(query, torch.stack([z[y == c].mean(0) for c in range(6)])).argmin(1)
    right, best = learner.score(query).argmax(1) == truth, nearest == truth
    assert right.float().mean() >= best.float().mean() - 0.02


def test_order_and_batch_size_do_not_matter() -> None:
    z, y = gaussians([3, 40, 80])
    query = gaussians([5] * 3, seed=1)[0]
    first = taught(rda(shortlist=None), z, y, size=10)
    order = torch.randperm(len(y), generator=generator(3))
    second = rda(shortlist=None)
    second.meet(first.classes_.tolist())
    taught(second, z[order], y[order], size=7)
    scatters = [learner.shapes.scatter(torch.arange(3), learner.stats.count) for learner in (first, second)]
    torch.testing.assert_close(*scatters, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(second.score(query), first.score(query), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("storage", ["full", "shared", "mean"])
def test_two_halves_merge_into_the_whole(storage: str) -> None:
    z, y = gaussians([1, 30, 60])
    query = gaussians([5] * 3, seed=1)[0]
    whole = taught(rda(storage=storage), z, y)
    left, right = taught(rda(storage=storage), z[:40], y[:40]), taught(rda(storage=storage), z[40:], y[40:])
    left.meet(whole.classes_.tolist())
    left.merge(right)
    columns = torch.tensor([left.classes_.tolist().index(c) for c in whole.classes_.tolist()])
    torch.testing.assert_close(left.score(query)[:, columns], whole.score(query), rtol=1e-3, atol=1e-3)


def test_packed_triangle_is_close_to_float64_and_half_the_size() -> None:
    z, y = gaussians([300])
    learner = taught(rda(), z, y)
    exact = torch.cov((z.double() + 1e-6).sqrt().T) * 299
    packed = learner.shapes.scatter(torch.tensor([0]), learner.stats.count)[0]
    assert float((packed - exact).norm() / exact.norm()) < 1e-6
    assert learner.shapes.triangle.numel() == D * (D + 1) // 2
    assert learner.shapes.triangle.dtype == torch.float32


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
    torch.testing.assert_close(low.score(query), full.score(query), rtol=1e-3, atol=1e-2)


def test_rank_zero_is_the_shared_covariance() -> None:
    z, y = gaussians([40, 80])
    low = taught(rda(storage="lowrank", rank=0), z, y)
    low.end_session()
    scatter = low.shapes.scatter(torch.tensor([1]), low.stats.count)[0]
    torch.testing.assert_close(scatter / (low.stats.count[1] - 1), low.shared_covariance(), rtol=1e-5, atol=1e-7)


def test_more_rank_comes_closer_to_the_full_covariance() -> None:
    z, y = gaussians([150, 150, 150])
    query = gaussians([20] * 3, seed=1)[0]
    exact = taught(rda(shortlist=None), z, y).score(query)
    errors = []
    for rank in (0, 10, 40, D):
        low = taught(rda(storage="lowrank", rank=rank, shortlist=None), z, y)
        low.end_session()
        errors.append(float((low.score(query) - exact).abs().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01 * errors[0]


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
    [({}, 0.99), ({"log_determinant": True}, 0.99), ({"storage": "lowrank", "rank": 12}, 0.95)],
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
    shared, rough = rule.shared_scores(query), learner._rough_scores(query, rule)
    missed = [float((scores.topk(10).indices != best).all(1).double().mean()) for scores in (shared, rough)]
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


@pytest.mark.parametrize("log_determinant", [False, True])
def test_low_rank_scores_equal_those_of_the_dense_covariances(log_determinant: bool) -> None:
    z, y = gaussians([1, 2, 40, 80])
    more, labels = gaussians([0, 3, 9, 30], seed=3)
    learner = rda(storage="lowrank", rank=5, shortlist=None, log_determinant=log_determinant)
    taught(learner, z, y).end_session()
    taught(learner, more, labels).end_session()  # the shared covariance has left the reference behind
    query = gaussians([5] * 4, seed=1)[0]
    covariances = learner.class_covariances(torch.arange(4))
    away = tukey(query, learner.power).double()[:, None] - learner.stats.mean
    distance = (away[:, :, None] @ torch.linalg.inv(covariances) @ away[:, :, :, None])[:, :, 0, 0]
    expected = D / learner.stats.count - distance - log_determinant * torch.logdet(covariances)
    torch.testing.assert_close(learner.score(query).double(), expected, rtol=1e-3, atol=1e-2)


def test_a_new_class_of_one_image_is_recognised_at_once_and_spoils_nothing() -> None:
    z, y = gaussians([50] * 6)
    test_z, test_y = gaussians([20] * 6, seed=1)
    new_z, new_y = gaussians([0] * 6 + [21], seed=2)
    learner = taught(rda(), z, y)
    before = (learner.classes_[learner.score(test_z).argmax(1)] == test_y).float().mean()
    learner.learn(new_z[:1], new_y[:1])
    assert float((learner.classes_[learner.score(new_z[1:]).argmax(1)] == 6).float().mean()) > 0.5
    after = (learner.classes_[learner.score(test_z).argmax(1)] == test_y).float().mean()
    assert after >= before - 0.05


def test_unbiased_distance_is_the_distance_to_the_true_mean_on_average() -> None:
    draw = generator(0, "unbiased")
    learner = rda(power=1, shortlist=None, ridge=0, prior=1e6)
    learner.learn(10 + torch.randn(4000, D, generator=draw), torch.zeros(4000, dtype=torch.int64))
    query = 10 + torch.randn(300, D, generator=draw)
    for label in range(1, 40):  # the same Gaussian, known from two images only
        learner.learn(10 + torch.randn(2, D, generator=draw), torch.full((2,), label))
    unbiased = -learner.score(query).mean(0)
    learner = learner_without_correction(learner)
    plain = -learner.score(query).mean(0)
    assert abs(float(unbiased[1:].mean() / unbiased[0]) - 1) < 0.05
    assert float(plain[1:].mean() / plain[0]) > 1.4


def learner_without_correction(learner: RDA) -> RDA:
    other = learner.clone(unbiased=False)
    other.load_state_dict(learner.state_dict())
    return other


def test_bad_features_are_refused_before_anything_changes() -> None:
    z, y = gaussians([3, 3])
    learner = taught(rda(), z, y)
    before = copy.deepcopy(learner.state_dict())
    broken = z.clone()
    broken[2, 5] = float("nan")
    for bad in (broken, z[:, :-1]):
        with pytest.raises(ValueError, match="features"):
            learner.learn(bad, y + 7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())


def test_log_determinant_is_subtracted() -> None:
    z, y = gaussians([30, 60])
    query = gaussians([5] * 2, seed=1)[0]
    plain, full = taught(rda(shortlist=None), z, y), taught(rda(shortlist=None, log_determinant=True), z, y)
    expected = torch.logdet(plain.class_covariances(torch.arange(2))).float()
    torch.testing.assert_close(plain.score(query) - full.score(query), expected.expand(10, 2), rtol=1e-3, atol=1e-2)


def test_flip_adds_the_mirror_images_scores() -> None:
    x = torch.randint(256, (6, 3, 32, 32), generator=generator(0), dtype=torch.uint8)
    y = torch.arange(6) % 2
    plain, flipping = rda(), rda(flip=True)
    plain.observe(x, y)
    flipping.observe(x, y)
    expected = plain.decision_function(x) + plain.decision_function(x.flip(-1))
    torch.testing.assert_close(flipping.decision_function(x), expected)


def test_scores_follow_the_statistics_after_an_update() -> None:
    z, y = gaussians([30, 30])
    learner = taught(rda(), z, y)
    before = learner.score(z)
    learner.learn(*gaussians([30, 30], seed=5))
    fresh = copy.deepcopy(learner)
    assert not torch.equal(learner.score(z), before)
    assert torch.equal(learner.score(z), fresh.score(z))


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


@pytest.mark.parametrize("check", ["small_batches_work", "batching_does_not_matter", "it_learns"])
@pytest.mark.parametrize("params", [{"storage": "shared"}, {"shortlist": 2, "flip": True}])
def test_other_settings_keep_the_contract(params: dict[str, JSON], check: str) -> None:
    LEARNER_CHECKS[check](RDA, params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"prior": 0}, "prior must be above 0"),
        ({"ridge": -1}, "ridge must be 0 or more"),
        ({"storage": "half"}, "storage must be one of full"),
        ({"shortlist": 0}, "shortlist must be a whole number, 1 or more, or None"),
        ({"storage": "lowrank", "rank": 1000}, "rank must be 0 to 112"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rda(**params)
