"""FACT: the four losses and the answer, against the public code's numbers and by their invariants."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nocl import nets
from nocl.checks import BASE_LABELS, easy_images, fitted, novel, split, teach
from nocl.experiments.job import Job
from nocl.methods.fact import (
    FACT,
    ForwardCompatible,
    assign,
    cross_entropy_without,
    mixed_labels,
    mixture,
    orthogonal_rows,
    virtual_labels,
)
from nocl.methods.ncm import NCM
from nocl.plumbing.files import write_tensors
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe, train_base
from tests.support.feature_nets import blobs, feed, on_features
from tests.support.reference_cases import CASES, floats

BASE, EDGE, ANSWER = CASES["fact_base_loss"], CASES["fact_mask_edge"], CASES["fact_inference"]
INPUTS = BASE["inputs"]


def objective(**options: object) -> ForwardCompatible:
    """The case's objective: five base classes, forty virtual ones, eight features."""
    case = ForwardCompatible(
        nets.build("tests.support.feature_nets:d8"), 8, 5, 0, virtual=40, beta=INPUTS["balance"], **options
    )
    case.rows.data.copy_(floats(INPUTS["W"]))
    case.fixed.copy_(floats(INPUTS["U"]))
    case.assigned.copy_(floats(INPUTS["mask"])[:, 5:] > 0)
    return case


def logits_of(case: ForwardCompatible, x: Tensor) -> Tensor:
    return case._logits(x, torch.cat([case.rows[:5], case.fixed]))


def test_losses_and_one_step_equal_the_reference() -> None:
    case, expected = objective(), BASE["outputs"]
    x, y, perm = floats(INPUTS["x"]), torch.tensor(INPUTS["y"]), torch.tensor(INPUTS["perm"])
    differs = y != y[perm]
    assert int(differs.sum()) == expected["kept_pairs"]
    mixed = (INPUTS["lam"] * x + (1 - INPUTS["lam"]) * x[perm])[differs]
    terms = [*case.plain_terms(x, y), *case.mixed_terms(mixed)]
    for name, term in zip(("L1", "L2", "L3", "L4"), terms):
        assert term.item() == pytest.approx(expected[name], abs=1e-4)
    assert virtual_labels(logits_of(case, x), y, case.assigned).tolist() == BASE["corrected"]["label_L2"]
    virtual, base = mixed_labels(case._logits(mixed, case.rows), 5)
    assert (virtual.tolist(), base.tolist()) == (expected["label_L3"], expected["label_L4"])
    total = case.combine(x, y, mixed)
    assert total.item() == pytest.approx(expected["total"], abs=1e-4)
    (gradient,) = torch.autograd.grad(total, [case.rows])
    torch.testing.assert_close(case.rows - 0.1 * gradient, floats(expected["W_after_step"]), atol=1e-4, rtol=0)


def test_a_class_without_virtual_classes_and_negative_logits() -> None:
    y, mask = torch.tensor(EDGE["inputs"]["y"]), floats(EDGE["inputs"]["mask"])[:, 5:] > 0
    case = objective()
    logits = logits_of(case, floats(INPUTS["x"]))
    ours = virtual_labels(logits, y, mask)
    assert ours.tolist() == EDGE["corrected"]["label_L2"]
    loss = cross_entropy_without(logits, y, ours).item()
    assert loss == pytest.approx(EDGE["corrected"]["L2_over_valid"], abs=1e-4)
    official = virtual_labels(logits, y, mask, official=True)
    assert official.tolist() == EDGE["outputs"]["label_L2_official"]
    assert cross_entropy_without(logits, y, official).item() == pytest.approx(EDGE["outputs"]["L2_official"], abs=1e-4)


@pytest.mark.parametrize("official", [False, True])
def test_answers_equal_the_reference(official: bool) -> None:
    inputs = ANSWER["inputs"]
    expected = ANSWER["outputs"]["score_official"] if official else ANSWER["corrected"]["score"]
    scores = mixture(
        floats(inputs["x"]), floats(inputs["W_seen"]), floats(inputs["virtual_rows"]), torch.zeros(11).bool(),
        eta=inputs["eta"], temperature=inputs["temperature"], official=official,
    )  # fmt: skip
    torch.testing.assert_close(scores, floats(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.sum(1), torch.ones(6))


def test_virtual_rows_are_orthogonal_and_every_base_class_has_one() -> None:
    for n_base, virtual, dim in ((60, 40, 160), (5, 8, 8)):
        rows = orthogonal_rows(n_base, virtual, dim, seed=3)[n_base:]
        torch.testing.assert_close(rows @ rows.T, torch.eye(virtual), atol=1e-5, rtol=0)
    assigned = assign(60, 40, generator(1))
    assert assigned.any(1).all()
    assert (assigned.sum(0) >= 3).all()
    assert not assign(60, 40, generator(1), everyone=False).any(1).all()  # by chance some class has none


def test_the_true_class_is_out_of_the_race_and_nothing_to_do_costs_nothing() -> None:
    logits, y = 16 * torch.eye(3), torch.tensor([0, 1, 2])
    masked = logits.scatter(1, y[:, None], -1e9).softmax(1)
    assert masked.diagonal().max() < 1e-6
    loss = cross_entropy_without(logits, y, torch.tensor([1, 2, 0]))
    assert loss.item() == pytest.approx(0.6931472)  # log 2: the two others are equal
    assert cross_entropy_without(logits, y, torch.tensor([-1, -1, -1])).item() == 0


@pytest.mark.parametrize("given", [False, True])
def test_frozen_virtual_rows_stay_while_the_others_train(given: bool) -> None:
    network = nets.build("tiny_resnet18")
    recipe = Recipe(
        objective="nocl.methods.fact:ForwardCompatible", epochs=1, lr=0.1, momentum=0.9, weight_decay=0.1,
        compile=False, options={"virtual": 6, "beta": 1.0},
    )  # fmt: skip
    start = ForwardCompatible.build(network, 64, 4, 0, recipe)
    assert start.fixed.data_ptr() != start.rows[4:].data_ptr()
    base = split(easy_images((7, 3, 40, 0), 4, seed=1), 8)
    trained = train_base(network, base, recipe, classes=(7, 3, 40, 0), image_size=32, seed=0).objective
    assert isinstance(trained, ForwardCompatible)
    assert torch.equal(trained.fixed, start.fixed)
    assert (trained.rows[4:] != start.rows[4:]).any(1).all()
    if given:  # and a network that is in eval mode receives no gradient
        network.zero_grad()
        trained.loss(network.eval(), base[0].x.float() / 255, torch.tensor([0, 1, 2, 3] * 2), generator(0)).backward()
        assert all(p.grad is None for p in network.parameters())
        assert trained.rows.grad is not None


def test_virtual_losses_wait_and_a_batch_of_one_class_has_nothing_to_mix() -> None:
    case = objective(virtual_from=2)
    x, y = floats(INPUTS["x"]), torch.tensor(INPUTS["y"])
    assert case.combine(x, y, x).item() == pytest.approx(BASE["outputs"]["L1"], abs=1e-4)
    case.epoch = 2
    assert case.combine(x, y, x).item() > BASE["outputs"]["L1"]
    network = nets.build("tiny_resnet18")
    tiny = ForwardCompatible(network, 64, 4, 0, virtual=6)
    images, ones = torch.rand(3, 3, 32, 32, generator=generator(1)), torch.ones(3, dtype=torch.int64)
    assert torch.isfinite(tiny.loss(network.train(), images, ones, generator(2)))


def test_late_after_early_is_the_network() -> None:
    network = nets.build("tiny_resnet18").eval()
    x = torch.rand(2, 3, 32, 32, generator=generator(1))
    assert network.early(x).shape == (2, 16, 16, 16)
    assert torch.equal(network.late(network.early(x)), network(x))


def test_eta_zero_is_the_nearest_mean_and_eta_one_asks_the_virtual_rows_alone() -> None:
    z, y = blobs(5, 20, 8)
    fact, mean = on_features(FACT, 8, eta=0.0, virtual=6), on_features(NCM, 8, space="vanilla")
    for learner in (fact, mean):
        feed(learner, z, y)
    assert torch.equal(fact.score(z).argsort(1), mean.score(z).argsort(1))
    by_class = fact.score(z)
    fact.virtual_.copy_(torch.randn(6, 8, generator=generator(5)))
    assert torch.equal(fact.score(z), by_class)
    fact.eta = 1.0
    through = fact.score(z)
    fact.virtual_.copy_(torch.eye(8)[:6])
    assert not torch.equal(fact.score(z).argmax(1), through.argmax(1))
    fact.virtual_.zero_()  # nothing to go by
    torch.testing.assert_close(fact.score(z), torch.full((100, 5), 0.2, dtype=torch.float64))


def test_online_only_the_rows_of_new_classes_move_and_they_are_means() -> None:
    learner = fitted(FACT, {})
    state = {name: value.clone() for name, value in learner.state_dict().items() if name != "_extra_state"}
    batches = novel()
    teach(learner, batches)
    unchanged = {name for name, value in learner.state_dict().items() if torch.equal(value, state.get(name, value))}
    assert {name for name in state if name.startswith(("network.", "virtual_"))} <= unchanged
    assert torch.equal(learner.stats.mean[:4], state["stats.mean"])
    x, y = (torch.cat(parts) for parts in zip(*batches))
    for column, label in enumerate(learner.classes_.tolist()[4:], start=4):
        expected = learner.features(x[y == label]).double().mean(0)
        torch.testing.assert_close(learner.stats.mean[column], expected, atol=1e-6, rtol=1e-5)


def test_the_learner_takes_over_the_trained_virtual_rows() -> None:
    learner = fitted(FACT, {})
    assert (learner.virtual_ != orthogonal_rows(4, 6, 64, 0)[4:]).any(1).all()
    untrained = FACT(virtual=6, backbone="tiny_resnet18")
    assert untrained.virtual_.shape == learner.virtual_.shape


def test_learners_with_other_virtual_rows_are_not_merged() -> None:
    one, other = (on_features(FACT, 8, virtual=6) for _ in range(2))
    one.merge(other)
    other.virtual_.add_(1)
    with pytest.raises(ValueError, match="virtual_"):
        one.merge(other)


def test_on_a_given_network_the_virtual_rows_are_trained(tmp_path: Path) -> None:
    network = nets.build("tiny_resnet18", seed=3)
    weights = tmp_path / "network.safetensors"
    write_tensors(weights, network.state_dict(), {})
    learner = FACT(backbone="tiny_resnet18", weights=str(weights), virtual=6, recipe={"head_epochs": 3, "lr": 0.05})
    start = learner.virtual_.clone()
    learner.fit_base(split(easy_images(BASE_LABELS, 8, seed=1), 16))
    assert len(learner.log_["base_loss"]) == 3  # type: ignore[arg-type]
    assert not torch.equal(learner.virtual_, start)
    assert torch.equal(learner.network.state_dict()["mean"], network.state_dict()["mean"])


@pytest.mark.parametrize(("partition", "novel"), [("60+20x2", 4), ("80+10x2", 2), ("50+10x5", 5)])
def test_virtual_classes_follow_the_partition_unless_set(partition: str, novel: int) -> None:
    small: dict[str, JSON] = {"n_classes": 10, "train_per_class": 2, "test_per_class": 1}
    params: dict[str, JSON] = {"backbone": "tiny_resnet18", "recipe": {"epochs": 0}}
    job = Job("fact", params, partition=partition, options=small)
    assert job.run().params["virtual"] == novel
    assert job.with_changes(params={**params, "virtual": 7}).learner(32, novel=novel).get_params()["virtual"] == 7
