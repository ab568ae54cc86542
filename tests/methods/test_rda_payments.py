"""What a class of few images pays under rda, and how it is compared with classes of many."""

import itertools

import pytest
import torch
from torch import Tensor

from nocl.methods.rda import rule
from nocl.methods.rda.means import ClassMeans
from nocl.methods.rda.method import RDA
from nocl.methods.rda.payments import Paying, paid
from nocl.plumbing.seeding import generator
from tests.support.rda_cases import gaussians, rda, taught


def after(images: tuple[int, ...], volumes: tuple[float, ...]) -> ClassMeans:
    """Means of classes that have these volumes, in 8 coordinates."""
    means = ClassMeans.certain(torch.zeros(len(images), 8, dtype=torch.float64))
    means.variance = torch.tensor(volumes).double().div(8).expm1()[:, None].expand(-1, 8)
    return means


@pytest.mark.parametrize(("others", "share"), [(2, 5 / 2), (4, 5 / 4), (31, 5 / 31)])
def test_a_class_pays_for_the_volume_it_takes_by_hand(others: int, share: float) -> None:
    """What exceeds the mean of all, where S is known, all that exceeds the best, where not; and more beside few."""
    images, volumes = (10**9,) * others + (1,), (2.0,) * others + (8.0,)
    means, count = after(images, volumes), torch.tensor(images)
    known, unknown = (paid(means, count, torch.tensor(r).double(), 0.0, Paying()) for r in (0.0, 1.0))
    above = 6 * others / (others + 1)
    assert known.tolist() == pytest.approx([0] * others + [above + share * above])
    assert unknown.tolist() == pytest.approx([0] * others + [6 + share * above])


@pytest.mark.parametrize(("images", "share"), [(1, 1.0), (4, 0.5), (10, 0.1)])
def test_while_little_is_known_a_class_of_few_images_must_be_likelier_by_hand(images: int, share: float) -> None:
    """Four images pay half of what one pays, in units of the temperature, beyond what all pay on average."""
    count = torch.tensor([10**9, 10**9, images, 0])
    found = paid(after((1,) * 4, (0.0,) * 4), count, torch.tensor(1 / 16).double(), 3.0, Paying())
    expected = 3.0 * 0.5 * share * 2 / 3  # of the three classes met
    assert found.tolist() == pytest.approx([0, 0, expected, 0], abs=1e-6)
    nobody = paid(after((1,) * 4, (1.0,) * 4), torch.zeros(4), torch.tensor(1.0), 3.0, Paying())
    assert nobody.tolist() == [0, 0, 0, 0]


def test_caution_multiplies_what_is_paid_at_the_models_own_temperature() -> None:
    z, y = gaussians([8, 8, 1])
    none, once, thrice = (taught(rda(shortlist=None, caution=c), z, y) for c in (0.0, 1.0, 3.0))
    paid_by = [each.payments(each._current().means) for each in (none, once, thrice)]
    unknown = torch.tensor(1 / (1 + (14 / once.feature_dim) ** 1.5)).double()
    expected = paid(once._current().means, once.stats.count, unknown, once.softmax_temperature(), Paying())
    assert float(expected[2]) > 1
    torch.testing.assert_close(torch.stack(paid_by), torch.tensor([0.0, 1.0, 3.0])[:, None] * expected)


def test_nothing_is_paid_where_all_classes_have_as_many_images() -> None:
    equal = taught(rda(shortlist=None), *gaussians([4, 4, 4]))
    nothing = torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(equal.payments(equal._current().means), nothing, rtol=0, atol=1e-9)


def test_a_class_without_images_is_not_one_of_the_others() -> None:
    learner = taught(rda(shortlist=None), *gaussians([200, 200, 1]))
    before = learner.payments(learner._current().means)
    assert float(before.max()) > 1
    learner.meet([9])
    torch.testing.assert_close(learner.payments(learner._current().means)[:3], before)


def test_like_is_compared_with_like_by_hand() -> None:
    """Two classes with shapes of their own, one of them the best; what its shape changed goes to the one without."""
    own, alone = torch.tensor([[-5.0, -9.0, -6.0]]), torch.tensor([[-3.0, -4.0, -6.0]])
    gain = rule.changed(own, alone, torch.tensor([[True, True, False]]))
    assert gain.tolist() == [[-2.0]]
    assert rule.changed(own, alone, torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0.0]]
    found = own + rule.lacking(torch.tensor([0.2, 0.2, 0.0]), torch.tensor([90, 90, 1])) * gain
    assert found.tolist() == [[-5.0, -9.0, -8.0]]
    assert rule.lacking(torch.zeros(3), torch.tensor([3, 3, 3])).tolist() == [0.0, 0.0, 0.0]
    assert rule.lacking(torch.zeros(0), torch.zeros(0)).tolist() == []


def test_images_that_fit_no_class_do_not_go_to_the_class_without_a_shape() -> None:
    """Old classes are narrow in some directions; images that are far out in these fit no old class, nor the new one."""
    draw, d = generator(0, "outliers"), 40
    narrow = torch.where(torch.arange(d) < 20, 0.3, 1.0)
    turns = [torch.randperm(d, generator=draw) for _ in range(4)]
    means = 30 + 0.8 * torch.randn(5, d, generator=draw)

    def images(c: int, n: int) -> Tensor:
        return means[c] + narrow[turns[c]] * torch.randn(n, d, generator=draw)

    strange = torch.cat([means[c] + torch.randn(200, d, generator=draw) for c in range(4)])
    z, y = torch.cat([images(c, 200) for c in range(4)]), torch.arange(4).repeat_interleave(200)
    learner = taught(RDA(backbone=f"features:{d}", power=1.0, prior=1.0, shortlist=None), z, y)
    learner.learn(means[4] + torch.randn(2, d, generator=draw), torch.tensor([4, 4]))
    taken = float((learner.score(strange).argmax(1) == 4).double().mean())
    within = learner._derive()
    within.lacking.zero_()
    without = float((within.scores(strange).argmax(1) == 4).double().mean())
    assert without > 2 * taken
    assert without > 0.1


@pytest.mark.parametrize("storage", ["full", "shared", "sketch"])
def test_what_is_exported_scores_unequal_classes_alike(storage: str) -> None:
    z, y = gaussians([200, 120, 30, 1])
    learner = taught(rda(storage=storage, shortlist=None, prior=0.5), z, y)
    assert bool(learner._current().lacking.any()) == (storage != "shared")
    query = gaussians([4] * 4, seed=3)[0]
    torch.testing.assert_close(learner.portable_scorer()(query), learner.score(query), rtol=1e-3, atol=1e-2)


def one_more_class(images: int, classes: int, learned: int, seed: int) -> tuple[float, float, float]:
    """Old accuracy before and after a class more of the same kind is learned, and how often it is recognised."""
    draw = generator(seed, "one more class")
    d = 40
    means = 6 + 0.6 * torch.randn(classes + 1, d, generator=draw)

    def drawn(n: int, k: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(k).repeat_interleave(n)
        return (means[y] + torch.randn(len(y), d, generator=draw)).clamp_min(0), y

    learner = rda(power=1.0, backbone=f"features:{d}")
    learner.learn(*drawn(learned, classes))
    test_z, test_y = drawn(20, classes)
    before = float((learner.score(test_z).argmax(1) == test_y).float().mean())
    new = (means[-1] + torch.randn(images + 40, d, generator=draw)).clamp_min(0)
    learner.learn(new[:images], torch.full((images,), classes))
    after = float((learner.score(test_z).argmax(1) == test_y).float().mean())
    return before, after, float((learner.score(new[images:]).argmax(1) == classes).float().mean())


@pytest.mark.parametrize(("classes", "learned"), [(3, 3), (9, 30), (40, 30)])
def test_one_picture_of_a_new_class_takes_little_from_the_old_ones(classes: int, learned: int) -> None:
    found = torch.tensor([one_more_class(1, classes, learned, seed) for seed in range(8)])
    before, after, new = found.mean(0).tolist()
    assert after >= before - 1 / (classes + 1)  # at most the share of one class
    assert new > 0.05  # of 41 classes by chance 0.024; a first picture is judged with caution


def test_more_pictures_do_not_make_a_new_class_worse() -> None:
    new = [sum(one_more_class(n, 9, 30, seed)[2] for seed in range(6)) / 6 for n in (1, 3, 10, 30)]
    assert all(later >= earlier - 0.05 for earlier, later in itertools.pairwise(new))
