"""Streaming LDA: numbers by hand, of the reference code, and its invariants."""

import numpy as np
import pytest
import torch

from nocl.methods.ncm import NCM
from nocl.methods.slda import SLDA
from nocl.stats.linalg import oas
from tests.support.feature_nets import CASES, blobs, doubles, feed, on_features

CASE = CASES["slda"]
X, Y, TEST = (
    doubles(CASE["inputs"]["x"]),
    torch.tensor(CASE["inputs"]["y"]),
    doubles(CASE["inputs"]["x_test"]),
)


@pytest.mark.parametrize("update", ["exact", "official"])
def test_one_class_by_hand(update: str) -> None:
    learner = on_features(SLDA, 1, update=update)
    feed(learner, doubles([[1], [3]]), torch.zeros(2, dtype=torch.int64))
    assert learner.stats.mean.item() == pytest.approx(2)
    assert learner.sigma().item() == pytest.approx(1)
    feed(learner, doubles([[5]]), torch.zeros(1, dtype=torch.int64))
    assert learner.stats.mean.item() == pytest.approx(3)
    assert learner.sigma().item() == pytest.approx(8 / 3)


def test_rule_by_hand() -> None:
    learner = on_features(SLDA, 2)
    feed(learner, doubles([[1, 1], [-1, -1], [-1, 1], [1, -1]]), torch.zeros(4, dtype=torch.int64))
    feed(learner, doubles([[3, 1], [1, -1], [1, 1], [3, -1]]), torch.ones(4, dtype=torch.int64))
    torch.testing.assert_close(learner.sigma(), torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(learner.score(doubles([[1.5, 0]])), doubles([[0, 1]]))
    boundary = learner.score(doubles([[1, 7]]))
    assert boundary[0, 0].item() == pytest.approx(boundary[0, 1].item())


def test_oas_by_hand_and_of_the_reference() -> None:
    torch.testing.assert_close(
        oas(doubles([[2, 0], [0, 1]]), 100).diagonal(), doubles([1.86139, 1.13861]), atol=1e-5, rtol=0
    )
    learner = on_features(SLDA, 6).fit_base_features([(X[:30], Y[:30])])
    reference = CASE["outputs"]["fit_base"]
    torch.testing.assert_close(learner.sigma(), doubles(reference["covariance_30_oas"]), atol=1e-5, rtol=0)


def _in_case_order(learner: SLDA, scores: torch.Tensor) -> torch.Tensor:
    return scores[:, learner.classes_.argsort()]


@pytest.mark.parametrize("n", [10, 30, 60])
def test_official_update_equals_the_reference_on_seen_classes(n: int) -> None:
    learner = on_features(SLDA, 6, update="official")
    feed(learner, X[:n], Y[:n], size=7)
    expected = CASE["outputs"]["official"][str(n)]
    torch.testing.assert_close(learner.sigma(), doubles(expected["covariance"]), atol=1e-5, rtol=0)
    seen = sorted(learner.classes_.tolist())
    scores = _in_case_order(learner, learner.score(TEST))
    torch.testing.assert_close(scores, doubles(expected["scores"])[:, seen], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("n", [10, 30, 60])
def test_exact_update_equals_the_corrected_values(n: int) -> None:
    learner = on_features(SLDA, 6)
    feed(learner, X[:n], Y[:n], size=7)
    expected = CASE["corrected"]["snapshots"][str(n)]
    torch.testing.assert_close(learner.sigma(), doubles(expected["covariance_exact"]), atol=1e-10, rtol=0)
    scores = learner.score(TEST)
    for column, label in enumerate(learner.classes_.tolist()):
        reference = doubles(expected["scores_exact_seen_classes"][str(label)])
        torch.testing.assert_close(scores[:, column], reference, atol=1e-6, rtol=1e-6)
    assert learner.classes_[scores.argmax(1)].tolist() == expected["argmax_exact_seen_only"]


@pytest.mark.parametrize("covariance", ["plastic", "fixed"])
def test_official_stream_after_a_base_session(covariance: str) -> None:
    learner = on_features(SLDA, 6, update="official", covariance=covariance)
    learner.fit_base_features([(X[:13], Y[:13]), (X[13:30], Y[13:30])])
    feed(learner, X[30:], Y[30:])
    expected = CASE["outputs"]["fit_base"][f"{covariance}_60"]
    torch.testing.assert_close(learner.sigma(), doubles(expected["covariance"]), atol=1e-5, rtol=0)
    scores = _in_case_order(learner, learner.score(TEST))
    torch.testing.assert_close(scores, doubles(expected["scores"]), atol=1e-3, rtol=1e-3)


def test_exact_update_equals_numpy_in_any_order_and_batch_size() -> None:
    z, y = blobs(5, 30, 7)
    centred = np.concatenate([z[y == c].numpy() - z[y == c].numpy().mean(0) for c in range(5)])
    pooled = torch.from_numpy(centred.T @ centred / len(z))
    for size, order in ((1, torch.arange(150)), (7, torch.arange(150).flip(0)), (150, torch.randperm(150))):
        learner = on_features(SLDA, 7)
        feed(learner, z[order], y[order], size)
        torch.testing.assert_close(learner.sigma(), pooled, atol=1e-10, rtol=0)


def test_isotropic_covariance_gives_the_answers_of_euclidean_ncm() -> None:
    z, y = blobs(6, 20, 5)
    slda, ncm = on_features(SLDA, 5), on_features(NCM, 5, space="vanilla", metric="euclidean")
    feed(slda, z, y)
    feed(ncm, z, y)
    slda.stats.scatter.copy_(3.7 * len(z) * torch.eye(5, dtype=torch.float64))
    queries = blobs(6, 50, 5, seed=1)[0]
    assert torch.equal(slda.score(queries).argmax(1), ncm.score(queries).argmax(1))


def test_covariance_stays_definite_and_fixed_means_fixed() -> None:
    z, y = blobs(4, 300, 6)
    learner = on_features(SLDA, 6, covariance="fixed").fit_base_features([(z[:200], y[:200])])
    before = learner.sigma().clone()
    feed(learner, z[200:], y[200:])
    assert torch.equal(before, learner.sigma())
    assert learner.stats.count.sum() == len(z)
    plastic = on_features(SLDA, 6).fit_base_features([(z[:200], y[:200])])
    feed(plastic, z[200:], y[200:], size=1)
    assert torch.linalg.eigvalsh(plastic.sigma()).min() > 0
    assert (plastic.sigma() - before).abs().max() > 1e-3


def test_a_class_met_but_never_seen_is_never_predicted() -> None:
    learner = on_features(SLDA, 6)
    learner.meet([9])
    feed(learner, X[:10], Y[:10])
    scores = learner.score(TEST)
    assert (scores[:, 0] == -torch.inf).all()
    assert 0 not in scores.argmax(1)
