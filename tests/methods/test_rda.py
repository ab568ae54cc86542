"""Streaming regularised discriminant analysis: against its formula, in any order, in little space."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl.checks import LEARNER_CHECKS
from nocl.methods.rda import rule, shared, temperature
from nocl.methods.rda.method import RDA
from nocl.methods.rda.payments import Paying
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import ClassStats, tukey
from tests.support.rda_cases import D, gaussians, prior_of_means, rda, taught


def by_formula(z: Tensor, y: Tensor, query: Tensor, prior: float, ridge: float, power: float = 0.5) -> Tensor:
    """Scores as the module docstring writes them, one class at a time, in float64."""
    z, query = (z.double() + 1e-6) ** power, (query.double() + 1e-6) ** power
    classes, d = list(dict.fromkeys(y.tolist())), z.shape[1]
    counts = torch.tensor([int((y == c).sum()) for c in classes])
    averages = torch.stack([z[y == c].mean(0) for c in classes])
    deviations = torch.cat([z[y == c] - z[y == c].mean(0) for c in classes])
    free = len(z) - len(classes)
    within, eye = deviations.T @ deviations / free, torch.eye(d, dtype=torch.float64)
    missing = 1 / (1 + (free / d) ** 1.5)
    guess = averages.var(0).mean() * 2 / 3
    level = (free * within.trace() / d + guess) / (free + 1)
    along = averages.mean(0) / averages.mean(0).norm()
    strong = (free * (along @ within @ along) / (within.trace() / d) + 15) / (free + 1)
    rounded = eye + (strong - 1) * along[:, None] * along[None, :]
    measured = (free * within + guess * rounded) / (free + 1)
    within = (1 - missing) * within + missing * level * rounded
    added = ridge * level * eye
    whole = torch.linalg.cholesky(within + added)
    known = counts > 1
    straight = torch.linalg.solve_triangular(whole, averages.T, upper=False).T
    back = torch.linalg.inv(whole)
    measured = back @ measured @ back.T
    measured = (1 - missing**4) * measured + missing**4 * measured.trace() / d * eye
    middle, e, w, axes, rests = prior_of_means(counts[known], straight[known], measured, missing**4)
    centre, away = whole @ middle, straight - middle
    volumes = torch.stack([torch.log1p(1 / (1 / e + n / w)).sum() for n in counts.tolist()])
    weights = (counts - 1) / (counts - 1 + prior * d)
    found, lengths = {"own": [], "alone": []}, []
    shapes, few = torch.zeros(len(counts)), 1 / (1 + ((counts - 1) / 3) ** 2)
    for i, n in enumerate(counts.tolist()):
        own = z[y == classes[i]]
        share = float(1 - weights[i] + missing * (weights[i] - weights.mean()).clamp_min(0))
        shapes[i] = 1 - share if 1 - share >= 0.01 else 0
        covariances = {"own": within + added, "alone": within + added}
        if shapes[i] > 0:
            covariances["own"] = share * within + added + (1 - share) * torch.cov(own.T)
        variance = 1 / (1 / e + n / w)
        x, believed = away[i] @ axes, n / w * variance
        if known[i]:
            leverage = rests[int(known[:i].sum())] * (x.square() / (e + w / n)).sum()
            believed = torch.maximum(1 - (1 - believed) / (1 - leverage), n / (w / e.min() + n))
        lengths.append((believed * x).square().sum())
        mean = centre + whole @ axes @ (believed * x)
        turn = whole @ axes
        for name, covariance in covariances.items():
            predictive = covariance + turn @ torch.diag(variance) @ turn.T
            off = query - mean
            distance = (off @ torch.linalg.inv(predictive) * off).sum(1)
            found[name].append(-(100 + d) * torch.log1p(distance / 100))
    pays = missing * (volumes - volumes.min()) + (1 - missing) * (volumes - volumes.mean()).clamp_min(0)
    odds = temperature.temperature(missing, float(torch.stack(lengths).mean()))
    pays += 5 / (len(counts) - 1) * (volumes - volumes.mean()).clamp_min(0)
    pays = 1.3 * (pays + odds * missing**0.25 * (few - few.mean()).clamp_min(0))
    own_scores, alone = (torch.stack(found[name], 1) - pays for name in ("own", "alone"))
    if bool((shapes > 0).any()):
        changed = own_scores[:, shapes > 0].amax(1) - alone[:, shapes > 0].amax(1)
        own_scores += (1 - shapes / shapes.max()) * changed[:, None]
    anywhere = within + added + whole @ axes @ torch.diag(e) @ (whole @ axes).T
    distance = ((query - centre) @ torch.linalg.inv(anywhere) * (query - centre)).sum(1)
    return own_scores + 0.9 * (100 + d) * torch.log1p(distance / 100)[:, None]


@pytest.mark.parametrize("many", [60, 600])  # the shared covariance is known in part, and wholly
def test_scores_equal_the_formula_for_classes_of_one_to_many_images(many: int) -> None:
    z, y = gaussians([1, 2, 5, many, 2 * many])
    query = gaussians([4] * 5, seed=1)[0]
    for prior, ridge in ((0.2, 0.01), (0.01, 0.1), (100.0, 0.0001)):
        learner = taught(rda(prior=prior, ridge=ridge, caution=1.3, shortlist=None), z, y)
        torch.testing.assert_close(
            learner.score(query).double(), by_formula(z, y, query, prior, ridge), rtol=2e-3, atol=1e-2
        )


def test_while_little_is_known_no_class_has_more_of_its_own_shape_than_all_on_average() -> None:
    """Otherwise it would be wider than the others and take their images."""
    few = taught(rda(prior=0.1, shortlist=None), *gaussians([3, 3, 3, 30]))
    unknown = 1 / (1 + (35 / D) ** 1.5)
    small, large = 2 / (2 + 0.1 * D), 29 / (29 + 0.1 * D)
    above = large - (3 * small + large) / 4
    many = few.stats.count == 30
    expected = torch.where(many, 1 - large + unknown * above, torch.tensor(1 - small)).double()
    torch.testing.assert_close(few._shares(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(few._weights(), (1 - expected) / (few.stats.count - 1), rtol=1e-5, atol=1e-7)


def test_a_class_of_thirty_images_leaves_their_own_to_classes_of_three() -> None:
    """Images vary most in a few directions, as features do: thirty show them, and three do not."""
    draw, d = generator(0, "kitchen"), 440
    spread = torch.arange(1.0, d + 1) ** -0.7
    spread /= spread.square().mean().sqrt()
    means = 0.6 * spread.sqrt() * torch.randn(4, d, generator=draw) + 30
    images = means[:, None] + spread * torch.randn(4, 80, d, generator=draw)
    learner = RDA(backbone=f"features:{d}", power=1.0)
    learner.learn(images[:3, :3].flatten(0, 1), torch.arange(3).repeat_interleave(3))
    asked, right = images[:3, 30:].flatten(0, 1), torch.arange(3).repeat_interleave(50)
    before = float((learner.score(asked).argmax(1) == right).double().mean())
    learner.learn(images[3, :30], torch.full((30,), 3))
    after = float((learner.score(asked).argmax(1) == right).double().mean())
    new = float((learner.score(images[3, 30:]).argmax(1) == 3).double().mean())
    assert before > 0.5
    assert after >= before
    assert new > 0.9


def test_many_images_leave_nothing_of_prior_and_caution() -> None:
    z, y = gaussians([3000, 3000], dim=D)
    query = gaussians([5] * 2, seed=1)[0]
    learner = taught(rda(shortlist=None, degrees=1e9), z, y, size=600)
    covariances = learner.class_covariances(torch.arange(2))
    away = tukey(query, learner.power).double()[:, None] - learner.stats.mean
    plain = -(away[:, :, None] @ torch.linalg.inv(covariances) @ away[:, :, :, None])[:, :, 0, 0]
    found = learner.score(query).double()
    torch.testing.assert_close(found[:, 1] - found[:, 0], plain[:, 1] - plain[:, 0], rtol=3e-3, atol=0.1)


def test_an_image_unlike_every_class_scores_below_one_that_is_only_far_out() -> None:
    """Both lie about as far from the nearer class: one beyond it on the line of the classes, one across that line."""
    draw = generator(0, "far out")
    z = torch.randn(400, 4, generator=draw) + 50
    y = torch.arange(2).repeat_interleave(200)
    z[:200, 0] += 5
    z[200:, 0] -= 5
    learner = taught(RDA(backbone="features:4", power=1.0, prior=1e6, degrees=30.0), z, y)
    beyond, across = torch.tensor([[59.0, 50, 50, 50]]), torch.tensor([[55.0, 54, 50, 50]])
    within = learner._derive()
    distances = [float(within.plain_distances(within.coordinates(at)).min()) for at in (beyond, across)]
    assert distances[0] == pytest.approx(distances[1], rel=0.25)
    assert float(learner.score(beyond).max()) > float(learner.score(across).max()) + 2


@pytest.mark.parametrize(
    "counts", [[1], [1, 1], [1, 1, 1], [3], [5, 1], [2, 2], [1] * 20]
)  # so few classes and images that most of it is unknown
def test_the_first_images_of_a_model_give_finite_scores_that_recognise_them(counts: list[int]) -> None:
    z, y = gaussians(counts)
    learner = rda()
    for image, label in zip(z.split(1), y.split(1)):
        learner.learn(image, label)
        assert bool(torch.isfinite(learner.score(z)).all())
    assert torch.equal(learner.classes_[learner.score(z).argmax(1)], y)


def test_repeated_and_constant_features_give_finite_scores() -> None:
    z, y = gaussians([1, 1, 1])
    learner = taught(rda(), z.repeat_interleave(7, 0), y.repeat_interleave(7))  # one image seven times
    assert torch.equal(learner.classes_[learner.score(z).argmax(1)], y)
    constant = rda()
    constant.learn(torch.ones(6, D), torch.arange(6) % 3)
    assert bool(torch.isfinite(constant.score(z)).all())


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


def test_temperature_follows_what_is_known_and_how_far_classes_lie_apart_and_merges_exactly() -> None:
    z, y = gaussians([10] * 4)
    learner = taught(rda(), z, y)
    unknown = 1 / (1 + (36 / D) ** 1.5)  # 40 images of 4 classes
    length = float(learner._derive().means.mean.square().sum(1).mean())
    assert learner.unknown() == pytest.approx(unknown)
    assert learner.squared_length_of_means() == pytest.approx(length)
    line = temperature.SCALE * length**temperature.BY_LENGTH * math.exp(temperature.BY_UNKNOWN * unknown)
    assert learner.softmax_temperature() == pytest.approx(line)
    assert taught(rda(flip=True), z, y).softmax_temperature() == pytest.approx(2 * line)
    left, right = taught(rda(), z[:20], y[:20]), taught(rda(), z[20:], y[20:])
    left.merge(right)
    assert left.softmax_temperature() == pytest.approx(line, rel=1e-6)
    assert rda().softmax_temperature() == 1
    assert taught(rda(), *gaussians([1] * 4)).unknown() == 1  # no class has shown how its images vary


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


@pytest.mark.parametrize("check", ["small_batches_work", "batching_does_not_matter", "it_learns"])
@pytest.mark.parametrize("params", [{"storage": "shared"}, {"shortlist": 2, "flip": True}])
def test_other_settings_keep_the_contract(params: dict[str, JSON], check: str) -> None:
    LEARNER_CHECKS[check](RDA, params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"prior": 0}, "prior must be above 0"),
        ({"ridge": -1}, "ridge must be 0 or more"),
        ({"storage": "half"}, "storage must be one of auto, full"),
        ({"shortlist": 0}, "shortlist must be a whole number, 1 or more, or None"),
        ({"storage": "lowrank", "rank": 1000}, "rank must be 0 to 112"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rda(**params)


def test_two_pictures_are_not_told_apart_by_their_strength() -> None:
    draw = generator(7, "strength")
    kinds = 1 + torch.rand(2, D, generator=draw)
    taught_z = kinds * torch.tensor([[1.0], [0.5]])  # the second one is a faint picture
    strong, faint = (scale * kinds + 0.02 * torch.rand(2, D, generator=draw) for scale in (1.0, 0.5))
    learner = taught(rda(), taught_z, torch.tensor([0, 1]))
    answers = torch.cat([learner.score(asked).argmax(1) for asked in (strong, faint)])
    assert answers.tolist() == [0, 1, 0, 1]
    plain = taught(rda(), taught_z, torch.tensor([0, 1]))
    plain._shared = lambda: shared.Shared(plain.stats, strong=False)  # type: ignore[method-assign]
    answers = torch.cat([plain.score(asked).argmax(1) for asked in (strong, faint)])
    assert answers.tolist() == [0, 0, 1, 1]  # else it would be strength that tells them apart


def test_vectors_that_may_be_negative_have_no_strength() -> None:
    stats = ClassStats(3, "shared")
    stats.grow(2)
    stats.update(torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0], [2.0, 2.0, 1.0]]), torch.tensor([0, 1, 1]))
    eye = torch.eye(3, dtype=torch.float64)
    assert torch.equal(shared.Shared(stats, strong=False)._round, eye)
    along = stats.mean.sum(0) / stats.mean.sum(0).norm()
    within = torch.tensor([0.5, -0.5, -0.5]).double()  # half the difference of the last two, times its sign
    k = ((within @ along) ** 2 / (within.square().sum() / 3) + 15) / 2
    expected = eye + (k - 1) * along[:, None] * along[None, :]
    torch.testing.assert_close(shared.Shared(stats, strong=True)._round, expected)
    assert not rda(power=1.0)._shared().strong


def test_the_defaults_are_what_the_benchmarks_found() -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    line = json.loads((results / "temperature.json").read_text())["line"]
    found = (temperature.SCALE, temperature.BY_UNKNOWN, temperature.BY_LENGTH)
    assert found == pytest.approx((line["scale"], line["a"], line["b"]), rel=1e-3)
    best = json.loads((results / "tune_rda.json").read_text())["best"]
    few = json.loads((results / "few_classes.json").read_text())
    chosen = dict(zip(few["halves"], few["mean"]))[shared._HALF_KNOWN]
    assert chosen > max(few["mean"]) - 0.25
    assert min(few["strength"].values()) - 2 < shared._STRENGTH < max(few["strength"].values()) + 2
    assert chosen > few["mean_plain"]
    assert json.loads((results / "familiarity.json").read_text())["best"] == rule.BACKGROUND
    usual = RDA(backbone="reduced_resnet18").get_params()
    paying = {"alike": rule.ALIKE, "caution": usual["caution"], **Paying()._asdict()}
    assert json.loads((results / "first_pictures_of_base.json").read_text())["chosen"] == paying
    assert {name: usual[name] for name in best} == best
