"""The posterior of classes' means that rda judges by: by hand, and what its prior follows."""

import pytest
import torch

from nocl.methods.rda.means import ClassMeans
from nocl.plumbing.seeding import generator
from tests.support.rda_cases import prior_of_means


def test_posterior_of_a_mean_by_hand_in_one_coordinate() -> None:
    """Averages 2, -2 and 0.5 of 100, 100 and 1 images; the first two lie 0 +- sqrt(8), less a noise of 1/100."""
    count = torch.tensor([100, 100, 1])
    mean = torch.tensor([[2.0], [-2.0], [0.5]], dtype=torch.float64)
    found = ClassMeans(count, mean, torch.eye(1, dtype=torch.float64))
    e = 2 / 3 * (8 - 0.01) + 1 / 3 * (8 - 0.01)
    variance = 1 / (1 / e + torch.tensor([100.0, 100.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found.variance[:, 0], variance)
    torch.testing.assert_close(found.mean[:, 0].abs(), (count * variance * mean[:, 0]).abs())


def test_posterior_of_a_mean_where_images_vary_by_a_quarter_of_the_variance_used() -> None:
    """The same averages: their noise is 0.25 / 100, and one image is worth four."""
    count = torch.tensor([100, 100, 1])
    mean = torch.tensor([[2.0], [-2.0], [0.5]], dtype=torch.float64)
    within = torch.full((1, 1), 0.25, dtype=torch.float64)
    found = ClassMeans(count, mean, torch.eye(1, dtype=torch.float64), within)
    variance = 1 / (1 / (8 - 0.0025) + 4 * count.double())
    torch.testing.assert_close(found.variance[:, 0], variance)
    torch.testing.assert_close(found.mean[:, 0].abs(), (4 * count * variance * mean[:, 0]).abs())


def test_one_image_where_classes_lie_as_far_apart_as_their_images_do() -> None:
    """e = 1 and n = 1: V = 1/2, and the mean is half the image."""
    found = ClassMeans.certain(torch.zeros(1, 1, dtype=torch.float64))
    assert float(found.variance) == 0
    single = ClassMeans(torch.tensor([1]), torch.zeros(1, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(single.variance, torch.full((1, 3), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("k", [4, 30])  # fewer classes than dimensions, and more
def test_axes_between_classes_diagonalise_their_covariance(k: int) -> None:
    draw, d = generator(1, "axes"), 9
    mean = torch.randn(k, d, generator=draw, dtype=torch.float64) @ torch.randn(d, d, generator=draw).double()
    root = torch.randn(d, d, generator=draw).double()
    found = ClassMeans(torch.full((k,), 7), mean, root)
    turned = found.turn @ torch.linalg.inv(root)  # orthogonal
    torch.testing.assert_close(turned @ turned.T, torch.eye(d, dtype=torch.float64))
    away = (mean - mean.mean(0)) @ found.turn.T
    between = away.T @ away
    torch.testing.assert_close(between, torch.diag(between.diagonal()), atol=1e-8 * float(between.max()), rtol=0)
    _, expected, *_ = prior_of_means(torch.full((k,), 7), mean @ root.T, torch.eye(d, dtype=torch.float64))
    torch.testing.assert_close(found.between.sort().values, expected.sort().values, rtol=1e-5, atol=1e-6)


def test_the_prior_of_means_is_round_until_the_classes_show_directions() -> None:
    """Classes that differ in 2 of 50 directions; their averages have no noise to speak of."""
    draw, eye = generator(2, "directions"), torch.eye(50, dtype=torch.float64)
    flat = torch.randn(40, 50, generator=draw, dtype=torch.float64) * (torch.arange(50) < 2)
    even = torch.randn(40, 50, generator=draw, dtype=torch.float64)
    share = {}
    for k in (3, 8, 40):
        count = torch.full((k,), 10**6)
        for name, means in (("flat", flat), ("even", even)):
            e = ClassMeans(count, means[:k], eye).between.sort(descending=True).values
            share[name, k] = float(e[:2].sum() / e.sum())
    assert share["flat", 3] < share["flat", 8] < share["flat", 40]
    assert share["flat", 40] > 0.9
    assert share["even", 8] < 0.15  # 0.04 if nothing were known; the averages alone would say 0.4


def test_the_prior_of_means_is_round_while_every_class_has_one_image() -> None:
    means = torch.randn(30, 8, generator=generator(4, "single"), dtype=torch.float64) * torch.arange(1, 9)
    eye = torch.eye(8, dtype=torch.float64)
    single = ClassMeans(torch.ones(30, dtype=torch.int64), means, eye).between
    torch.testing.assert_close(single, single.mean().expand(8))
    assert float(ClassMeans(torch.full((30,), 9), means, eye).between.std()) > 1


def test_averages_of_few_images_hardly_move_the_prior_of_means() -> None:
    draw, d = generator(3, "few and many"), 20
    many = 0.3 * torch.randn(12, d, generator=draw, dtype=torch.float64)
    few = many + torch.randn(12, d, generator=draw, dtype=torch.float64)  # twice as noisy as 1 / n says
    eye = torch.eye(d, dtype=torch.float64)
    alone = ClassMeans(torch.full((12,), 1000), many, eye).between.sum()
    both = ClassMeans(torch.tensor([1000] * 12 + [2] * 12), torch.cat([many, few]), eye).between.sum()
    plain = ClassMeans(torch.full((24,), 1000), torch.cat([many, few]), eye).between.sum()
    assert both - alone < 0.5 * (plain - alone)


@pytest.mark.parametrize("images", [3, 20])
def test_what_is_believed_of_an_average_does_not_rest_on_its_noise(images: int) -> None:
    """The posterior mean is that of a prior without that part of the class itself, with whole matrices."""
    draw, d = generator(5, "leave one out"), 6
    mean = torch.randn(300, d, generator=draw, dtype=torch.float64) * 4.0 ** torch.arange(d)  # hardly shrunk
    mean[299] *= 3
    count, eye = torch.tensor([40] * 299 + [images]), torch.eye(d, dtype=torch.float64)
    found = ClassMeans(count, mean, eye)
    centre, e, _, axes, own = prior_of_means(count, mean, eye)
    assert float(own[:299].abs().max()) < 1e-4 * float(own[299])  # that of the others has no more noise than usual
    x = mean[299] - centre
    others = axes @ torch.diag(e) @ axes.T - own[299] * x[:, None] * x
    expected = (others @ torch.linalg.inv(others + eye / images) @ x) @ axes
    above = e > 2 * e.min()  # in the others what is round decides
    torch.testing.assert_close((found.mean[299] @ found.turn @ axes)[above], expected[above], rtol=1e-8, atol=0)
    assert float(own[299] * (x @ axes).square() @ (1 / (e + 1 / images))) > 0.02  # there is something to leave out


def test_the_noise_of_an_average_is_not_believed_where_there_are_more_coordinates_than_classes() -> None:
    """A class of ten images beside forty that are known: its posterior mean lies nearer to the truth."""
    draw, d = generator(6, "noise"), 300
    truth = torch.randn(41, d, generator=draw, dtype=torch.float64) * torch.where(torch.arange(d) < 20, 2.0, 0.1)
    count = torch.tensor([200] * 40 + [10])
    mean = truth + torch.randn(41, d, generator=draw, dtype=torch.float64) / count[:, None].sqrt()
    found = ClassMeans(count, mean, torch.eye(d, dtype=torch.float64))
    believed = found.mean @ found.turn + found.centre
    naive = (
        found.centre + ((mean - found.centre) @ found.turn.T / (1 + 1 / (count[:, None] * found.between))) @ found.turn
    )
    error = (believed - truth).square().sum(1)
    assert error[40] < 0.8 * (naive - truth)[40].square().sum()
    assert error[40] < 0.6 * (mean - truth)[40].square().sum()
    torch.testing.assert_close(believed[:40], naive[:40], rtol=1e-4, atol=1e-4)


def test_in_coordinates_that_were_not_turned_each_is_left_out_by_itself() -> None:
    draw, d = generator(7, "coordinates"), 4
    mean = torch.randn(12, d, generator=draw, dtype=torch.float64) * torch.arange(1, d + 1)
    mean[11] *= 3
    count, eye = torch.tensor([50] * 11 + [5]), torch.eye(d, dtype=torch.float64)
    found = ClassMeans(count, mean, eye, rotate=False)
    centre, _, _, _, own = prior_of_means(count, mean, eye)
    x = mean[11] - centre
    others = found.between - own[11] * x.square()
    assert float((others / found.between).min()) < 0.9
    torch.testing.assert_close(found.mean[11] / x, others / (others + 1 / 5), rtol=1e-6, atol=0)


def test_among_classes_of_as_many_images_nothing_is_left_out() -> None:
    mean = torch.randn(12, 30, generator=generator(8, "equal"), dtype=torch.float64)
    found = ClassMeans(torch.full((12,), 7), mean, torch.eye(30, dtype=torch.float64))
    turned = (mean - found.centre) @ found.turn.T
    torch.testing.assert_close(found.mean, 7 * found.variance * turned)
