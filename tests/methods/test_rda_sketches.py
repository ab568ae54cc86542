"""Sketches of covariances: linear, exact for few images, never too large, and what rda makes of them."""

import itertools

import pytest
import torch
from torch import Tensor

from nocl.checks import LEARNER_CHECKS
from nocl.learner import UnsupportedError
from nocl.methods.rda.method import RDA
from nocl.methods.rda.rule import background
from nocl.methods.rda.sketches import ClassSketches, filled, rows_for
from nocl.plumbing.seeding import generator
from nocl.stats.class_stats import ClassStats, tukey
from tests.support.rda_cases import gaussians, rda, taught

DIM, ROWS = 40, 6


def sketched(z: Tensor, y: Tensor, size: int = 7) -> tuple[ClassSketches, ClassStats]:
    sketches, stats = ClassSketches(DIM, ROWS), ClassStats(DIM, "shared")
    sketches.grow(3)
    stats.grow(3)
    for part, columns in zip(z.double().split(size), y.split(size)):
        sketches.update(part, columns, stats)
        stats.update(part, columns)
    return sketches, stats


def scatter_of(z: Tensor) -> Tensor:
    away = z.double() - z.double().mean(0)
    return away.T @ away


def test_it_is_exact_up_to_one_image_more_than_it_has_rows_and_never_too_large() -> None:
    z, y = gaussians([1, ROWS + 1, 60], dim=DIM)
    sketches, _ = sketched(z, y)
    found = sketches.scatter(torch.arange(3))
    assert not found[0].any()
    few, many = scatter_of(z[y == 1]), scatter_of(z[y == 2])
    assert (found[1] - few).abs().max() < 1e-4 * few.abs().max()
    assert torch.linalg.eigvalsh(many - found[2]).min() > -1e-4 * many.abs().max()
    assert torch.linalg.matrix_rank(found[2], rtol=1e-4) == ROWS
    assert found[2].trace() > ROWS / DIM * many.trace()  # more than as many coordinates would hold


def test_batches_and_halves_add_up_to_the_whole_and_come_off_again() -> None:
    z, y = gaussians([5, 20, 30], dim=DIM)
    whole, stats = sketched(z, y)
    for size in (1, 55):
        torch.testing.assert_close(sketched(z, y, size)[0].sketch, whole.sketch, rtol=1e-4, atol=1e-3)
    (left, left_stats), (right, right_stats) = sketched(z[:30], y[:30]), sketched(z[30:], y[30:])
    expected = left.sketch.clone()
    left.merge(right, torch.arange(3), left_stats, right_stats)
    left_stats.merge(right_stats)
    torch.testing.assert_close(left.sketch, whole.sketch, rtol=1e-4, atol=1e-3)
    before = left_stats.count.clone(), left_stats.mean.clone()
    left.subtract(right, torch.arange(3), before, right_stats)
    torch.testing.assert_close(left.sketch, expected, rtol=1e-4, atol=1e-3)
    whole.subtract(whole, torch.arange(3), (stats.count.clone(), stats.mean.clone()), stats)
    assert not whole.sketch.any()


def test_with_as_many_rows_as_features_it_scores_nearly_as_whole_covariances_do() -> None:
    z, y = gaussians([400, 300, 200, 2])
    query = gaussians([5, 5, 5, 5], seed=3)[0]
    full, sketch, shared = (
        taught(rda(storage=storage, ridge=1e-7, prior=0.5), z, y).score(query)
        for storage in ("full", "sketch", "shared")
    )
    assert (sketch - full).abs().mean() < 0.1 * (shared - full).abs().mean()


def test_scores_are_those_of_the_covariances_it_says_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (9 + 4) * 4 * DIM)
    learner = RDA(backbone=f"features:{DIM}", storage="sketch", prior=0.5)
    assert learner.sketches.rows == 9
    taught(learner, *gaussians([300, 200, 3], dim=DIM))
    query = gaussians([4, 4, 4], seed=3, dim=DIM)[0]
    rule = learner._derive()
    rule.lacking.zero_()  # that like is compared with like is another matter
    found = rule.scores(tukey(query, learner.power))
    covariances = learner.class_covariances(torch.arange(3))
    u = rule.coordinates((query + 1e-6) ** learner.power).double()
    for c in (0, 1):
        predictive = rule.means.turn @ covariances[c] @ rule.means.turn.T + torch.diag(rule.means.variance[c])
        away = u - rule.means.mean[c]
        distance = (away @ torch.linalg.inv(predictive) * away).sum(1)
        expected = rule.score_of(distance.float(), slice(c, c + 1)) - background(u.float(), rule.unmet, rule.degrees)
        torch.testing.assert_close(found[:, c], expected, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(learner.portable_scorer()(query), learner.score(query), rtol=1e-3, atol=1e-2)


def test_classes_of_many_images_are_not_narrower_than_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sketch shows nine of many directions, the rest is as wide as the shared covariance."""
    dim, draw = 300, generator(0, "unequal")
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (9 + 4) * 4 * dim)
    images = 0.35 * torch.randn(6, 1, dim, generator=draw) + torch.randn(6, 450, dim, generator=draw) + 20
    learner = RDA(backbone=f"features:{dim}", storage="sketch", prior=1.0, power=1.0)
    assert learner.sketches.rows == 9
    learner.learn(images[:4, :400].flatten(0, 1), torch.arange(4).repeat_interleave(400))
    asked, right = images[:4, 400:].flatten(0, 1), torch.arange(4).repeat_interleave(50)
    before = float((learner.score(asked).argmax(1) == right).double().mean())
    learner.learn(images[4:, :20].flatten(0, 1), torch.arange(4, 6).repeat_interleave(20))
    after = float((learner.score(asked).argmax(1) == right).double().mean())
    new = float((learner.score(images[4:, 400:].flatten(0, 1)).argmax(1) >= 4).double().mean())
    assert before > 0.9
    assert after > before - 0.03
    assert new > 0.5
    turn = learner._current().means.turn
    width = (turn @ learner.class_covariances(torch.tensor([0]))[0] @ turn.T).trace() / dim
    assert float(width) == pytest.approx(1, abs=0.01)


def test_a_class_of_few_images_has_the_whole_covariance_of_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (9 + 4) * 4 * DIM)
    z, y = gaussians([10, 200, 200], dim=DIM)
    sketch, full = (taught(RDA(backbone=f"features:{DIM}", storage=s, ridge=0.0), z, y) for s in ("sketch", "full"))
    columns = torch.tensor([sketch.classes_.tolist().index(label) for label in (0, 1)])
    (few, many), (few_whole, many_whole) = (each.class_covariances(columns) for each in (sketch, full))
    assert (few - few_whole).abs().max() < 1e-5 * few_whole.abs().max()
    assert (many - many_whole).abs().max() > 1e-3 * many_whole.abs().max()


def test_what_a_sketch_does_not_show_is_right_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that differ from the shared covariance only in what the sketch shows have, on average, their own."""
    dim, rows, n, draws = 12, 3, 9, 4000
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (rows + 4) * 4 * dim)
    sketches, draw = ClassSketches(dim, rows), generator(0, "unseen")
    root = torch.randn(dim, dim, generator=draw, dtype=torch.float64) / 3
    whole = root @ root.T + torch.eye(dim, dtype=torch.float64)
    z = torch.randn(draws * n, dim, generator=draw, dtype=torch.float64) @ torch.linalg.cholesky(whole).T
    stats, columns = ClassStats(dim, "none"), torch.arange(draws).repeat_interleave(n)
    sketches.grow(draws)
    stats.grow(draws)
    sketches.update(z, columns, stats)
    own = sketches.scatter(torch.arange(draws)) / (n - 1)
    unseen, nothing = sketches.unseen(torch.full((draws,), n)), torch.zeros(draws, dtype=torch.float64)
    assert unseen[0] == pytest.approx(1 - rows / (n - 1))
    found = filled(whole, nothing, own, unseen, sketches.directions)
    error = found.std(0) / draws**0.5
    assert ((found.mean(0) - whole).abs() < 5 * error + 1e-9).all()
    assert torch.linalg.eigvalsh(found).min() > -1e-6


def test_order_batches_and_merging_do_not_matter() -> None:
    z, y = gaussians([60, 40, 20])
    query = gaussians([3, 3, 3], seed=9)[0]
    whole = taught(rda(storage="sketch", prior=0.5), z, y)
    column = {int(label): i for i, label in enumerate(whole.classes_)}
    for order, size in itertools.product((torch.arange(len(y)), torch.arange(len(y)).flip(0)), (1, 500)):
        other = taught(rda(storage="sketch", prior=0.5), z[order], y[order], size)
        columns = [column[int(label)] for label in other.classes_]
        torch.testing.assert_close(other.score(query), whole.score(query)[:, columns], rtol=1e-3, atol=1e-2)
    left, right = (taught(rda(storage="sketch", prior=0.5), z[part], y[part]) for part in (slice(70), slice(70, None)))
    left.merge(right)
    columns = [column[int(label)] for label in left.classes_]
    torch.testing.assert_close(left.score(query), whole.score(query)[:, columns], rtol=1e-3, atol=1e-2)


def narrow(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of classes that vary in the same six directions ten times as much as in others."""
    draw, width = generator(seed, "narrow"), torch.ones(DIM).index_fill_(0, torch.arange(ROWS), 10.0)
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator(0, "turn"))).Q
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    order = torch.randperm(len(y), generator=draw)
    z = (torch.randn(len(y), DIM, generator=draw) * width) @ turn + 200 + 5 * y[:, None]
    return z[order], y[order]


def few_rows(monkeypatch: pytest.MonkeyPatch) -> RDA:
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (ROWS + 4) * 4 * DIM)
    learner = RDA(backbone=f"features:{DIM}", storage="sketch", power=1.0)
    assert learner.sketches.rows == ROWS
    return learner


def fitted(learner: RDA, z: Tensor, y: Tensor) -> RDA:
    return learner.fit_base_features(list(zip(z.split(10), y.split(10))))


def test_after_a_base_session_sketches_look_where_classes_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class that comes later they show nearly all that six directions can, blind ones less."""
    z, y = narrow([60, 50, 200])
    after_base, blind = few_rows(monkeypatch), few_rows(monkeypatch)
    fitted(after_base, z[y < 2], y[y < 2])
    assert int(after_base.stats.count.sum()) == 110
    for learner in (after_base, blind):
        learner.learn(z[y == 2], y[y == 2])
    best = torch.linalg.eigvalsh(scatter_of(z[y == 2]))[-ROWS:].sum()
    seen, by_chance = (
        float(each.sketches.scatter(torch.tensor([len(each.classes_) - 1]))[0].trace() / best)
        for each in (after_base, blind)
    )
    assert seen > 0.97
    assert by_chance < 0.9
    eye = torch.eye(ROWS, dtype=torch.float64)
    torch.testing.assert_close(
        after_base.sketches.directions.T @ after_base.sketches.directions, eye, atol=1e-6, rtol=0
    )


def test_classes_that_aimed_the_sketches_leave_a_trace_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = narrow([60, 50, ROWS, ROWS])
    learner = fitted(few_rows(monkeypatch), z[y < 3], y[y < 3])
    taught(learner, z[y == 3], y[y == 3])
    assert [learner.leaves_no_trace(label) for label in range(4)] == [False, False, False, True]
    other = taught(few_rows(monkeypatch), z[y == 3], y[y == 3])
    other.merge(learner)  # takes the vectors
    assert [other.leaves_no_trace(label) for label in range(3)] == [False, False, False]
    again = few_rows(monkeypatch)
    again.load_state_dict(learner.state_dict())
    assert not again.leaves_no_trace(2)
    for label in range(4):
        again.forget(label)
    assert again.sketches.looks_as(few_rows(monkeypatch).sketches)


def test_a_small_base_session_leaves_the_vectors_of_all_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = narrow([DIM // 2, DIM // 2 + 1])  # one image too few to know a covariance of DIM values
    by_base, by_stream = fitted(few_rows(monkeypatch), z, y), taught(few_rows(monkeypatch), z, y)
    assert by_base.sketches.looks_as(by_stream.sketches)
    torch.testing.assert_close(by_base.sketches.sketch, by_stream.sketches.sketch)


def test_vectors_are_saved_and_models_without_them_have_the_blind_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = narrow([60, 50])
    learner = fitted(few_rows(monkeypatch), z, y)
    again = few_rows(monkeypatch)
    again.load_state_dict(learner.state_dict())
    assert torch.equal(again.score(z), learner.score(z))
    old = taught(few_rows(monkeypatch), z, y)
    state = {name: value for name, value in old.state_dict().items() if name != "sketches.shaped"}
    again.load_state_dict(state)
    assert torch.equal(again.score(z), old.score(z))


def test_parts_of_one_base_session_are_merged_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = narrow([60, 50, 90])
    base, new = y < 2, y == 2
    whole = fitted(few_rows(monkeypatch), z[base], y[base])
    left, right = whole.copy_on_network(), whole.empty_copy()
    whole.learn(z[new], y[new])
    left.learn(z[new][:40], y[new][:40])
    right.learn(z[new][40:], y[new][40:])
    left.merge(right)
    torch.testing.assert_close(left.sketches.sketch, whole.sketches.sketch, rtol=1e-4, atol=1e-1)
    torch.testing.assert_close(left.score(z), whole.score(z), rtol=1e-3, atol=1e-2)


def test_few_images_take_the_vectors_of_a_base_session_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of up to ROWS + 1 images is known whole, so that other vectors can be taken at any time."""
    z, y = narrow([60, 50, ROWS + 1])
    base, new = y < 2, y == 2
    whole = fitted(few_rows(monkeypatch), z[base], y[base])
    few = taught(few_rows(monkeypatch), z[new], y[new])
    few.merge(whole)
    whole.learn(z[new], y[new])
    columns = [few.classes_.tolist().index(label) for label in whole.classes_.tolist()]
    assert few.sketches.looks_as(whole.sketches)
    torch.testing.assert_close(few.score(z)[:, columns], whole.score(z), rtol=1e-3, atol=1e-2)


def test_other_base_sessions_are_merged_approximately_and_come_off_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    z, y = narrow([60, 50, 60, 50])
    ours = fitted(few_rows(monkeypatch), z[y < 2], y[y < 2])
    theirs = fitted(few_rows(monkeypatch), z[y >= 2], y[y >= 2])
    before = ours.sketches.sketch.clone()
    assert not ours.sketches.looks_as(theirs.sketches)
    ours.merge(theirs)
    assert "another base session" in caplog.text
    theirs_here = ours.sketches.scatter(torch.tensor([2, 3]))
    expected = theirs.sketches.scatter(torch.tensor([0, 1]))
    assert (theirs_here - expected).norm() < 0.05 * expected.norm()
    ours.subtract(theirs)
    torch.testing.assert_close(ours.sketches.sketch[:2], before, rtol=1e-4, atol=1e-1)
    assert not ours.sketches.sketch[2:].any()


def test_a_class_of_few_images_is_forgotten_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocl.methods.rda.sketches.BYTES", (20 + 4) * 4 * DIM)
    z, y = gaussians([21, 15, 18], dim=DIM)
    learner, never = (RDA(backbone=f"features:{DIM}", storage="sketch") for _ in range(2))
    taught(learner, z, y)
    taught(never, z[y != 1], y[y != 1])
    assert learner.forgets_exactly
    learner.forget(1, exact=True)
    order = [learner.classes_.tolist().index(label) for label in never.classes_.tolist()]
    error = (learner.stats.scatter - never.stats.scatter).abs().max()
    assert error < 1e-5 * never.stats.scatter.abs().max()
    torch.testing.assert_close(learner.score(z)[:, order], never.score(z), rtol=1e-3, atol=1e-2)
    learner.learn(z[y == 0][:1], torch.tensor([0]))  # the 22nd image of its class: 20 rows cannot hold 21 directions
    assert (learner.leaves_no_trace(0), learner.leaves_no_trace(2), learner.forgets_exactly) == (False, True, False)
    with pytest.raises(UnsupportedError, match="without a trace"):
        learner.forget(0, exact=True)
    learner.forget(0)
    assert torch.linalg.eigvalsh(learner.stats.scatter).min() > -1e-3


def test_features_too_many_for_whole_covariances_are_sketched_and_few_bytes() -> None:
    learner = RDA(backbone="features:1280")
    assert (learner.storage, learner.sketches.rows) == ("sketch", 33)
    learner.learn(torch.rand(4, 1280, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3]))
    before = learner.state_bytes()["statistics"]
    learner.learn(torch.rand(1, 1280, generator=torch.Generator().manual_seed(1)), torch.tensor([4]))
    assert learner.state_bytes()["statistics"] - before < 200_000
    assert RDA(backbone="features:640").storage == "full"
    assert rows_for(200_000) == 0


@pytest.mark.parametrize("check", ["small_batches_work", "batching_does_not_matter", "it_learns"])
def test_it_keeps_the_contract(check: str) -> None:
    LEARNER_CHECKS[check](RDA, {"storage": "sketch"})
