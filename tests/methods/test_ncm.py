"""Nearest class mean: numbers by hand, of the reference code, and its invariants."""

import pytest
import torch

from nocl.methods.ncm import NCM
from tests.support.feature_nets import CASES, blobs, doubles, feed, on_features


def test_means_and_both_metrics_by_hand() -> None:
    z, y = doubles([[1, 0], [3, 0], [0, 2]]), torch.tensor([1, 1, 2])
    cosine, euclidean = (on_features(NCM, 2, space="vanilla", metric=m) for m in ("cosine", "euclidean"))
    for learner in (cosine, euclidean):
        feed(learner, z, y)
        assert learner.stats.mean.tolist() == [[2, 0], [0, 2]]
    assert cosine.score(doubles([[1, 0.5]])).argmax().item() == 0
    torch.testing.assert_close(-euclidean.score(doubles([[1, 0.5]])), doubles([[1.25, 3.25]]))


def test_ranking_equals_the_reference() -> None:
    inputs, outputs = CASES["ncm"]["inputs"], CASES["ncm"]["outputs"]
    z, y, test = doubles(inputs["features"]), torch.tensor(inputs["labels"]), doubles(inputs["x_test"])
    learner = on_features(NCM, 6, space="vanilla")
    feed(learner, z, y)
    order = learner.classes_.argsort()
    torch.testing.assert_close(learner.stats.mean[order], doubles(outputs["means"]), atol=1e-6, rtol=0)
    scores = learner.score(test)[:, order]
    torch.testing.assert_close(scores, doubles(outputs["cosines_numpy"]), atol=1e-6, rtol=0)
    assert scores.argsort(1, descending=True).tolist() == outputs["ranking"]
    euclidean = on_features(NCM, 6, space="vanilla", metric="euclidean")
    feed(euclidean, z, y)
    assert euclidean.classes_[euclidean.score(test).argmax(1)].tolist() == outputs["euclidean_argmin_numpy"]


@pytest.mark.parametrize("params", [{}, {"normalise_first": True}, {"metric": "euclidean"}])
def test_order_and_batch_size_do_not_matter_and_a_new_class_changes_no_other(
    params: dict[str, object],
) -> None:
    z, y = blobs(4, 20, 5)
    a, b = on_features(NCM, 5, **params), on_features(NCM, 5, **params)
    feed(a, z[y < 3], y[y < 3], 1)
    feed(b, z[y < 3].flip(0), y[y < 3].flip(0), 60)
    before = a.score(z)
    torch.testing.assert_close(before[:, a.classes_.argsort()], b.score(z)[:, b.classes_.argsort()])
    feed(a, z[y == 3], y[y == 3])
    torch.testing.assert_close(a.score(z)[:, :3], before, rtol=1e-13, atol=1e-13)


def test_cosine_ignores_scale_and_far_blobs_are_told_apart() -> None:
    z, y = blobs(6, 50, 8, spread=0.2)
    learner = on_features(NCM, 8)
    feed(learner, z, y)
    queries, truth = blobs(6, 50, 8, seed=1, spread=0.2)
    answers = learner.score(queries).argmax(1)
    assert torch.equal(answers, learner.score(10 * queries).argmax(1))
    assert (learner.classes_[answers] == truth).double().mean() > 0.99


def test_zero_feature_and_unseen_class() -> None:
    learner = on_features(NCM, 3, space="vanilla")
    learner.meet([4])
    feed(learner, doubles([[1, 0, 0], [0, 1, 0]]), torch.tensor([0, 1]))
    assert learner.score(torch.zeros(1, 3, dtype=torch.float64)).tolist() == [[float("-inf"), 0, 0]]


def test_hyper_space_is_dsr_without_iterations() -> None:
    from nocl.checks import BASE_LABELS, QUICK, easy_images, novel, split
    from nocl.methods import make

    base, (x, _) = split(easy_images(BASE_LABELS, 8, seed=1), 8), easy_images((7, 12), 3, seed=9)
    common = {**QUICK, "recipe": {"objective": "ce", "epochs": 2, "compile": False}, "dim": 16}
    ncm, dsr = make("ncm", space="hyper", **common), make("dsr", iterations=0, **common)
    for learner in (ncm, dsr):
        learner.fit_base(base)
        for batch in novel():
            learner.observe(*batch)
        learner.end_session()
    torch.testing.assert_close(ncm.decision_function(x), dsr.decision_function(x))
    assert ncm.stats.mean.shape == (6, 16)  # type: ignore[union-attr,operator]
