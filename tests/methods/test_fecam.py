"""FeCAM: numbers by hand, of the reference code, and its invariants."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nocl.methods import fecam
from nocl.methods.fecam import FeCAM, correlation, shrink
from nocl.methods.ncm import NCM
from nocl.stats.class_stats import tukey
from tests.support.feature_nets import CASES, blobs, doubles, feed, on_features

CASE = CASES["fecam"]
FEATURES, TEST, EXPECTED = (
    doubles(CASE["inputs"]["features"]),
    doubles(CASE["inputs"]["x_test"]),
    CASE["outputs"],
)


def _taught(**params: object) -> FeCAM:
    """The case's four classes, two in the base session and two in the one after it."""
    learner = on_features(FeCAM, 5, **params)
    z, y = FEATURES.reshape(-1, 5), torch.arange(4).repeat_interleave(25)
    learner.fit_base_features([(z[:50][::2], y[:50][::2]), (z[:50][1::2], y[:50][1::2])])
    feed(learner, z[50:], y[50:], 7)
    learner.end_session()
    return learner


def _close(actual: torch.Tensor, name: str, atol: float = 1e-6, rtol: float = 0) -> None:
    torch.testing.assert_close(actual, doubles(EXPECTED[name]), atol=atol, rtol=rtol)


def test_shrinkage_by_hand() -> None:
    once = shrink(doubles([[2, 1], [1, 4]]), 1, 1)
    twice = shrink(once, 1, 1)
    assert twice.tolist() == [[11, 4], [4, 13]]
    assert correlation(twice)[0, 1].item() == pytest.approx(0.33450, abs=1e-5)
    assert shrink(doubles([[2, 0], [0, 4]]), 1, 1).tolist() == [[5, 0], [0, 7]]  # no off-diagonal: not 0 / 0


def test_statistics_equal_the_reference() -> None:
    learner = _taught()
    _close(learner.raw.mean, "means_raw")
    covariance = learner.stats.covariance(unbiased=True)
    _close(shrink(covariance, 1, 1), "cov_once")
    _close(shrink(shrink(covariance, 1, 1), 1, 1), "cov_twice")
    _close(learner.metric(), "correlation")
    _close(tukey(TEST, 0.5, floor=0.0), "tukey_half")


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({}, "dist_eval"),
        ({}, "dist_plain"),
        ({"normalise": False}, "dist_cov_twice"),
        ({"covariance": "diagonal"}, "dist_diagonal"),
        ({"covariance": "shared", "within": False}, "dist_shared"),
    ],
)
def test_distances_equal_the_reference(params: dict[str, object], name: str) -> None:
    learner = _taught(**params)
    distances = -learner.score(TEST)
    _close(distances.T, name, rtol=1e-4)
    if name == "dist_eval":
        assert distances.argmin(1).tolist() == EXPECTED["argmin"]


def test_shared_covariance_of_the_reference_before_and_after_a_session() -> None:
    learner = on_features(FeCAM, 5, covariance="shared", within=False)
    learner.fit_base_features([(FEATURES[:2].reshape(-1, 5), torch.arange(2).repeat_interleave(25))])
    _close(learner.common_, "shared_cov_base")
    assert learner.uses_boundaries
    feed(learner, FEATURES[2:].reshape(-1, 5), torch.arange(2, 4).repeat_interleave(25))
    learner.end_session()
    learner.end_session()
    _close(learner.common_, "shared_cov_after")


def test_distance_by_hand() -> None:
    learner = on_features(FeCAM, 2)
    feed(learner, doubles([[1, 4], [2, 3], [0, 9]]), torch.zeros(3, dtype=torch.int64))
    # put N = [[1, .5], [.5, 1]] in place: shrunk twice with alphas 0 it stays what it is
    learner.alpha1 = learner.alpha2 = 0.0
    learner.stats.scatter.copy_(doubles([[[2, 1], [1, 2]]]))
    torch.testing.assert_close(learner.metric(), doubles([[[1, 0.5], [0.5, 1]]]))
    q = F.normalize(doubles([[3, 5]]), dim=1)
    p = F.normalize(learner.raw.mean.sqrt(), dim=1)
    gap = q - p
    by_hand = (gap[0, 0] ** 2 - gap[0, 0] * gap[0, 1] + gap[0, 1] ** 2) / 0.75
    assert -learner.score(doubles([[9, 25]])).item() == pytest.approx(by_hand.item())


@pytest.mark.parametrize("params", [{}, {"covariance": "diagonal"}, {"covariance": "shared"}])
def test_identity_covariance_ranks_like_ncm_on_normalised_tukey_features(params: dict[str, object]) -> None:
    z, y = blobs(5, 20, 6)
    learner = on_features(FeCAM, 6, mean_space="tukey", **params)
    ncm = on_features(NCM, 6)
    for each in (learner, ncm):
        feed(each, z, y)
    ones = torch.eye(6, dtype=torch.float64) if learner.covariance != "diagonal" else 1.0
    learner.stats.scatter.copy_(torch.zeros_like(learner.stats.scatter) + 19 * ones)
    queries = blobs(5, 40, 6, seed=1)[0]
    assert torch.equal(learner.score(queries).argsort(1), ncm.score(queries).argsort(1))


def test_streaming_covariance_equals_numpy_for_any_split() -> None:
    z, y = blobs(3, 40, 5)
    for size in (1, 9, 120):
        learner = on_features(FeCAM, 5)
        feed(learner, z, y, size)
        for column, label in enumerate(learner.classes_.tolist()):
            expected = np.cov(z[y == label].sqrt().numpy().T)
            np.testing.assert_allclose(learner.stats.covariance(unbiased=True)[column], expected, atol=1e-8)


def test_metric_is_a_correlation_and_distances_are_positive_and_zero_at_the_prototype() -> None:
    z, y = blobs(3, 40, 5)
    learner = on_features(FeCAM, 5)
    feed(learner, z, y)
    metric = learner.metric()
    torch.testing.assert_close(metric.diagonal(dim1=1, dim2=2), torch.ones(3, 5, dtype=torch.float64))
    assert metric.abs().max() <= 1 + 1e-12
    assert (-learner.score(blobs(3, 50, 5, seed=3)[0]) > 0).all()
    torch.testing.assert_close(
        -learner.score(learner.raw.mean).diagonal(), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_correlation_does_not_see_the_scale_of_a_dimension() -> None:
    matrix, scale = doubles(EXPECTED["cov_twice"]), doubles([1, 10, 0.1, 3, 7])
    torch.testing.assert_close(correlation(matrix * scale[:, None] * scale[None, :]), correlation(matrix))


def test_a_new_class_leaves_the_distances_to_others_as_they_were() -> None:
    z, y = blobs(4, 30, 5)
    learner = on_features(FeCAM, 5)
    feed(learner, z[y < 3], y[y < 3])
    before = learner.score(z)
    feed(learner, z[y == 3], y[y == 3])
    torch.testing.assert_close(learner.score(z)[:, :3], before, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal"])
def test_one_image_a_dead_unit_and_an_unseen_class(covariance: str) -> None:
    z, y = blobs(2, 30, 5)
    z[:, 2] = 0  # a unit that never fires
    learner = on_features(FeCAM, 5, covariance=covariance)
    learner.meet([8])
    feed(learner, z, y)
    learner.learn(z[:1] + 1, torch.tensor([5]))
    scores = learner.score(z)
    assert (scores[:, 0] == -torch.inf).all()
    assert torch.isfinite(scores[:, 1:]).all()


@pytest.mark.parametrize("rows", [3, 2048])
@pytest.mark.parametrize("values", [1, 3 * 2 * 5])
def test_pieces_of_rows_and_classes_do_not_change_the_distances(
    rows: int, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = _taught()
    whole = learner.score(TEST)
    monkeypatch.setattr(fecam, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(fecam, "_VALUES_AT_ONCE", values)
    torch.testing.assert_close(learner.score(TEST), whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("covariance", ["diagonal", "shared", "full"])
def test_rows_are_scored_in_pieces_of_bounded_size(covariance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = blobs(4, 12, 5)
    learner = on_features(FeCAM, 5, covariance=covariance)
    feed(learner, z, y)
    sizes: list[int] = []
    real = fecam._squared_lengths
    monkeypatch.setattr(fecam, "_squared_lengths", lambda q, *more: (sizes.append(len(q)), real(q, *more))[1])
    monkeypatch.setattr(fecam, "_ROWS_AT_ONCE", 4)
    learner.score(z[:10])
    assert sizes == [4, 4, 2]
