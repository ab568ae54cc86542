"""RanPAC, ACIL and the ridge regression they share: by hand, of the reference code, one against the other."""

from typing import Any

import pytest
import torch

from nocl.methods.acil import ACIL
from nocl.methods.ranpac import HELD_OUT, RanPAC
from nocl.stats.ridge import GRID, RecursiveRidge, RidgeStats, choose_ridge
from tests.support.feature_nets import CASES, blobs, doubles, feed, on_features


def _joint(h: torch.Tensor, y: torch.Tensor, k: int, ridge: float) -> torch.Tensor:
    targets = torch.nn.functional.one_hot(y, k).double()
    return torch.linalg.inv(h.T @ h + ridge * torch.eye(h.shape[1], dtype=torch.float64)) @ h.T @ targets


def _ridge_stats(h: torch.Tensor, y: torch.Tensor, k: int) -> RidgeStats:
    stats = RidgeStats(h.shape[1])
    stats.grow(k)
    stats.update(h, y)
    return stats


# --- the two forms ---


def test_scalars_by_hand() -> None:
    stats = _ridge_stats(doubles([[1]]), torch.tensor([0]), 1)
    assert stats.weights(1.0).item() == pytest.approx(0.5)
    stats.update(doubles([[2]]), torch.tensor([0]))
    assert (stats.gram.item(), stats.cross.item()) == (5, 3)
    assert stats.weights(1.0).item() == pytest.approx(0.5)
    recursion = RecursiveRidge(1, 1.0)
    recursion.grow(1)
    recursion.update(doubles([[1]]), torch.tensor([0]))
    assert recursion.inverse.item() == pytest.approx(0.5)
    assert recursion.weight.item() == pytest.approx(0.5)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_recursion_equals_the_closed_form_for_any_batch_size_with_late_classes(size: int) -> None:
    z, y = blobs(5, 20, 8)
    y = torch.cat([y[y < 3], y[y >= 3], y[y == 0]])
    z = torch.cat([z, z[:20]])
    recursion = RecursiveRidge(8, 0.1)
    for start in range(0, len(y), size):
        labels = y[start : start + size]
        recursion.grow(max(0, int(labels.max()) + 1 - len(recursion.count)))
        recursion.update(z[start : start + size], labels)
    torch.testing.assert_close(recursion.weight, _joint(z, y, 5, 0.1), atol=1e-9, rtol=0)
    assert (recursion.inverse - recursion.inverse.T).abs().max() < 1e-12
    values = torch.linalg.eigvalsh(recursion.inverse)
    assert values.min() > 0
    assert values.max() <= 10 * (1 + 1e-9)


def test_merged_shards_equal_the_whole() -> None:
    z, y = blobs(4, 25, 6)
    whole, shard = _ridge_stats(z, y, 4), _ridge_stats(z[:40], y[:40], 4)
    shard.merge(_ridge_stats(z[40:], y[40:], 4))
    torch.testing.assert_close(shard.gram, whole.gram, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(shard.cross, whole.cross, rtol=1e-12, atol=1e-10)
    assert torch.equal(shard.count, whole.count)


def test_limits_of_the_ridge() -> None:
    z, y = blobs(3, 40, 5)
    stats = _ridge_stats(z, y, 3)
    large = stats.weights(1e12)
    torch.testing.assert_close(large / large.norm(), stats.cross / stats.cross.norm(), rtol=1e-6, atol=1e-8)
    least_squares = torch.linalg.lstsq(z, torch.nn.functional.one_hot(y, 3).double()).solution
    torch.testing.assert_close(stats.weights(1e-10), least_squares, rtol=1e-6, atol=1e-8)
    assert torch.linalg.eigvalsh(stats.gram).min() >= -1e-6 * torch.linalg.eigvalsh(stats.gram).max()


def test_the_same_batch_twice_is_not_the_same_as_once() -> None:
    z, y = blobs(2, 10, 4)
    once = RecursiveRidge(4, 1.0)
    once.grow(2)
    once.update(z, y)
    before = once.weight.clone()
    once.update(z, y)
    assert (once.weight - before).abs().max() > 1e-4


def test_a_recursion_without_ridge_is_refused() -> None:
    with pytest.raises(ValueError, match="ridge above 0, not 0"):
        RecursiveRidge(3, 0.0)


# --- RanPAC ---

RANPAC = CASES["ranpac"]


def _ranpac(**params: Any) -> RanPAC:
    learner: RanPAC = on_features(RanPAC, 5, expansion=12, balance=0.0, **params)  # as the paper
    learner.layer.matrix.copy_(doubles(RANPAC["inputs"]["W_rand"]))
    return learner


def _task(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = RANPAC["inputs"]
    return doubles(inputs[f"features_task{n}"]), torch.tensor(inputs[f"labels_task{n}"])


def _by_label(learner: Any, columns: torch.Tensor) -> torch.Tensor:
    return columns[:, learner.classes_.argsort()]


def test_ranpac_sums_and_logits_equal_the_reference() -> None:
    expected = RANPAC["outputs"]["official"]["after_task_2"]
    for ridge in (0.1, 1.0, 100.0):
        learner = _ranpac(ridge=ridge)
        for task in (1, 2):
            feed(learner, *_task(task))
        torch.testing.assert_close(learner.stats.gram, doubles(expected["G"]), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            _by_label(learner, learner.stats.cross), doubles(expected["Q"]), rtol=1e-5, atol=1e-5
        )
        logits = _by_label(learner, learner.score(doubles(RANPAC["inputs"]["features_test"])))
        reference = RANPAC["outputs"]["fixed_ridge_after_task_2"][str(ridge)]
        torch.testing.assert_close(logits, doubles(reference["logits"]), atol=1e-4, rtol=0)
        if ridge == 1:
            exact = RANPAC["corrected"]["logits_ridge1_float64"]
            torch.testing.assert_close(logits, doubles(exact), atol=1e-6, rtol=0)


@pytest.mark.parametrize("task", [1, 2])
def test_ridge_choice_equals_the_reference(task: int) -> None:
    z, y = _task(task)
    h = (z @ doubles(RANPAC["inputs"]["W_rand"])).relu()
    n = int(0.8 * len(y))
    ridge, errors = choose_ridge(_ridge_stats(h[:n], y[:n], 5), _ridge_stats(h[n:], y[n:], 5))
    expected = RANPAC["outputs"]["official"][f"after_task_{task}"]
    assert ridge == expected["ridge"]
    assert errors == pytest.approx(expected["val_mse_per_grid_value"], rel=1e-3)  # float32 in the reference


def test_base_pass_holds_out_every_fifth_of_each_class_and_forgets_no_sample() -> None:
    z, y = blobs(3, 25, 5)
    learner = on_features(RanPAC, 5, expansion=12)
    learner.fit_base_features([(z[i : i + 8], y[i : i + 8]) for i in range(0, len(y), 8)])
    order = torch.stack([(y[: i + 1] == y[i]).sum() - 1 for i in range(len(y))])
    aside = order % HELD_OUT == HELD_OUT - 1
    assert aside.sum() == 15
    h, columns = learner.layer(z), torch.tensor([learner.classes_.tolist().index(label) for label in y])
    fit, held_out = (_ridge_stats(h[part], columns[part], 3) for part in (~aside, aside))
    assert learner.ridge_.item() == choose_ridge(fit, held_out)[0]
    mse = []
    for ridge in GRID:
        miss = h[aside] @ fit.weights(ridge) - torch.nn.functional.one_hot(columns[aside], 3)
        mse.append(float(miss.square().mean()))
    assert learner.log_["ridge_errors"][6:] == pytest.approx(mse[6:], rel=1e-6)
    torch.testing.assert_close(learner.stats.gram, h.T @ h)
    assert not any(name.startswith("_held") for name in learner.state_dict())


def test_classes_in_another_order_give_the_same_predictions() -> None:
    z, y = blobs(5, 20, 5)
    queries = blobs(5, 30, 5, seed=1)[0]
    answers = []
    for order in (torch.arange(100), y.argsort(stable=True), torch.arange(100).flip(0)):
        learner = on_features(RanPAC, 5, expansion=30, ridge=0.1)
        feed(learner, z[order], y[order])
        answers.append(learner.classes_[learner.score(queries).argmax(1)])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


@pytest.mark.parametrize("expansion", [0, 30])
def test_ranpac_equals_acil_at_equal_layer_and_ridge(expansion: int) -> None:
    z, y = blobs(5, 20, 5)
    ranpac = on_features(RanPAC, 5, expansion=expansion, ridge=0.1)
    acil = on_features(ACIL, 5, expansion=expansion, gamma=0.1)
    acil.layer.load_state_dict(ranpac.layer.state_dict())
    feed(ranpac, z, y)
    feed(acil, z, y, 3)
    torch.testing.assert_close(acil.score(z), ranpac.score(z), atol=1e-6, rtol=0)


def test_random_layer_follows_the_seed_and_counts_as_network() -> None:
    a, b, c = (on_features(RanPAC, 5, expansion=9, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(a.layer.matrix, b.layer.matrix)
    assert not torch.equal(a.layer.matrix, c.layer.matrix)
    assert "layer.matrix" in a.network_state_names()
    assert on_features(RanPAC, 5, expansion=9, scaled=True).layer.matrix[0, 0] == pytest.approx(
        a.layer.matrix[0, 0].item() / 5**0.5
    )


@pytest.mark.parametrize("cls", [RanPAC, ACIL])
def test_a_class_met_but_never_seen_is_never_predicted(cls: Any) -> None:
    z, y = blobs(3, 10, 5)
    learner = on_features(cls, 5, expansion=9)
    learner.meet([7])
    feed(learner, -z, y)  # dead units: all scores are 0
    assert (learner.score(-z)[:, 0] == -torch.inf).all()


# --- ACIL, G-ACIL, F-OAL ----------------------------------------------------------------------------------------


def _acil(activation: str, matrix: list[list[float]], gamma: float) -> ACIL:
    learner: ACIL = on_features(ACIL, 4, expansion=9, gamma=gamma, activation=activation, balance=0.0)  # as the papers
    learner.layer.matrix = doubles(matrix).T
    return learner


def test_acil_equals_the_reference_after_each_batch() -> None:
    inputs, outputs = CASES["acil"]["inputs"], CASES["acil"]["outputs"]
    learner = _acil("relu", inputs["E"], inputs["gamma"])
    for batch, expected in zip(inputs["batches"], outputs["after_batch"]):
        learner.learn(doubles(batch["x"]), torch.tensor(batch["y"]))
        torch.testing.assert_close(learner.solution.inverse, doubles(expected["R"]), atol=1e-9, rtol=0)
        ours = _by_label(learner, learner.solution.weight)
        torch.testing.assert_close(ours, doubles(expected["W"])[:, : ours.shape[1]], atol=1e-9, rtol=0)
    torch.testing.assert_close(ours, doubles(outputs["joint_W"]), atol=1e-9, rtol=0)
    logits = _by_label(learner, learner.score(doubles(inputs["x_test"])))
    torch.testing.assert_close(logits, doubles(outputs["logits"]), atol=1e-9, rtol=0)


def test_gacl_counts_each_sample_once_and_its_three_passes_are_a_threefold_weight() -> None:
    inputs, case = CASES["acil"]["inputs"], CASES["gacl"]
    once, thrice = (_acil("relu", inputs["E"], case["inputs"]["gamma"]) for _ in range(2))
    for batch in inputs["batches"]:
        z, y = doubles(batch["x"]), torch.tensor(batch["y"])
        once.learn(z, y)
        for _ in range(3):
            thrice.learn(z, y)
    right, wrong = (_by_label(each, each.solution.weight) for each in (once, thrice))
    torch.testing.assert_close(right, doubles(case["outputs"]["W_iter1"]), atol=1e-9, rtol=0)
    torch.testing.assert_close(right, doubles(case["corrected"]["W_joint_in_column_order"]), atol=1e-9, rtol=0)
    torch.testing.assert_close(once.solution.inverse, doubles(case["outputs"]["R_iter1"]), atol=1e-9, rtol=0)
    torch.testing.assert_close(wrong, doubles(case["outputs"]["W_iter3"]), atol=1e-9, rtol=0)


def test_foal_is_the_same_recursion_through_a_sigmoid() -> None:
    inputs, outputs = CASES["foal"]["inputs"], CASES["foal"]["outputs"]
    learner = _acil("sigmoid", inputs["P"], 1.0)
    feed(learner, doubles(inputs["x"]), torch.tensor(inputs["y"]), inputs["batch"])
    weight = _by_label(learner, learner.solution.weight)
    torch.testing.assert_close(weight, doubles(outputs["W"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight, doubles(outputs["joint_W"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(learner.solution.inverse, doubles(outputs["R"]), atol=1e-6, rtol=0)


def test_acil_builds_no_graph_and_leaves_the_network_alone() -> None:
    z, y = blobs(2, 10, 4)
    learner = on_features(ACIL, 4, expansion=9)
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    learner.learn(z.requires_grad_(), y)
    assert not learner.solution.weight.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.network.state_dict().items())


@pytest.mark.parametrize(("cls", "ridge"), [(ACIL, "gamma"), (RanPAC, "ridge")])
def test_balance_divides_by_the_share_of_images_and_leaves_equal_classes_alone(cls: Any, ridge: str) -> None:
    z = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).double()
    equal, unequal = torch.arange(3).repeat(10), torch.tensor([0] * 24 + [1] * 4 + [2] * 2)
    for y, factor in ((equal, torch.ones(3)), (unequal, 10 / torch.tensor([24.0, 4.0, 2.0]))):
        scores = []
        for balance in (0.0, 0.5):
            learner = on_features(cls, 4, expansion=9, balance=balance, **{ridge: 0.1})
            feed(learner, z, y)
            scores.append(_by_label(learner, learner.score(z)))
        torch.testing.assert_close(scores[1], scores[0] * factor.double().sqrt())
