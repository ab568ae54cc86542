"""ALICE: the angular penalty at given angles, mixed classes, and means that no order changes."""

import pytest
import torch
from torch import Tensor, nn

from nocl import nets
from nocl.checks import fitted, novel, teach
from nocl.methods.alice import ALICE, AngularPenalty, cosface
from nocl.plumbing.seeding import generator
from nocl.pretrain import Recipe, objectives
from nocl.pretrain.supcon import pair_labels
from tests.support.feature_nets import blobs, feed, on_features
from tests.support.reference_cases import CASES, floats


def test_angular_penalty_by_hand() -> None:
    right, zero = torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1, 3)
    label = torch.tensor([0])
    assert cosface(right.double(), label).item() == pytest.approx(3.046e-8, rel=1e-3)  # 2 exp(-18)
    assert cosface(zero, label).item() == pytest.approx(12.69315, abs=1e-5)  # log(1 + 2 exp(12))
    assert cosface(zero, label, margin=0.0).item() == pytest.approx(1.098612, abs=1e-6)  # log 3: 0 means 0


def test_angular_penalty_equals_the_reference() -> None:
    inputs, outputs = CASES["alice_cosface"]["inputs"], CASES["alice_cosface"]["outputs"]
    cosines, labels = floats(inputs["cosines"]).requires_grad_(), torch.tensor(inputs["labels"])
    loss = cosface(cosines, labels)
    loss.backward()
    assert loss.item() == pytest.approx(outputs["mean_loss"], rel=1e-4)
    torch.testing.assert_close(cosines.grad, floats(outputs["grad_cosines"]), rtol=1e-4, atol=1e-5)
    for name, expected in outputs["mean_loss_other"].items():
        scale, margin = (float(part[1:]) for part in name.split("_"))
        assert cosface(cosines, labels, scale, margin).item() == pytest.approx(expected, rel=1e-4)
    edge, edge_labels = floats(inputs["edge_cosines"]), torch.tensor(inputs["edge_labels"])
    for row, expected in enumerate(outputs["edge_losses"]):
        one = cosface(edge[row : row + 1], edge_labels[row : row + 1]).item()
        assert one == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_labels_of_mixed_classes_equal_the_reference_and_fill_their_range() -> None:
    outputs = CASES["alice_pair_labels"]["outputs"]
    tables = [(5, outputs["B5"]), *[(60, outputs[f"B60_{part}"]) for part in ("first", "last", "sampled")]]
    for n_classes, triples in tables:
        a, b, label = torch.tensor(triples).T
        assert torch.equal(pair_labels(a, b, n_classes), label)
        assert torch.equal(pair_labels(b, a, n_classes), label)
    a, b = torch.triu_indices(60, 60, offset=1)
    labels = pair_labels(a, b, 60)
    assert labels.sort().values.tolist() == list(range(60, 1830))
    assert labels.sum().item() == outputs["B60_sum"]


def test_mixed_batch_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, outputs = CASES["alice_mix_batch"]["inputs"], CASES["alice_mix_batch"]["outputs"]
    y, partners = torch.tensor(inputs["labels"]), [torch.tensor(perm) for perm in inputs["perms"]]
    lambdas, weights = iter(inputs["raw_lambdas"]), []
    for partner in partners:  # one weight for each kept pair, in order of use
        kept = (y != y[partner]).tolist()
        weights.append(torch.tensor([next(lambdas) if keep else 0.5 for keep in kept]))
    drawn = iter(partners), iter(weights)
    monkeypatch.setattr(objectives.torch, "randperm", lambda n, generator: next(drawn[0]))
    monkeypatch.setattr(objectives, "_beta", lambda shape, n, draw: next(drawn[1]))
    views = [floats(inputs["view1"]), floats(inputs["view2"])]
    mixed, labels = objectives.mix_classes(views, y, inputs["B"], generator(0), times=2)
    for view, name in enumerate(("view1", "view2")):
        images = torch.cat([views[view], *mixed[view::2]])
        torch.testing.assert_close(images, floats(outputs[name]), atol=1e-6, rtol=0)
        assert torch.cat([y, *labels[view::2]]).tolist() == outputs["labels"]


def objective(**changes: int) -> tuple[nets.Backbone, AngularPenalty]:
    recipe = Recipe(objective="nocl.methods.alice:AngularPenalty", projection=32, mixes=4).with_changes(changes)
    network = nets.build("tiny_resnet18")
    return network, AngularPenalty.build(network, 64, 4, 0, recipe)


def test_loss_is_the_average_of_two_heavy_views_and_their_mixtures() -> None:
    network, alice = objective()
    x, y = torch.rand(4, 3, 32, 32, generator=generator(1)), torch.tensor([0, 1, 2, 3])
    images, targets = alice.views(x, y, generator(2))
    assert (images[:4] != images[4:8]).any()  # the two views differ
    assert targets[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(images) == len(targets) <= 10 * len(x)
    assert 4 <= targets[8:].min() <= targets.max() < len(alice.rows) == 10
    z: Tensor = network(images)
    whole = alice.terms(z, targets)
    n = (len(targets) - 8) // 8  # rows of a view in a round, if no pair was left out
    if len(targets) == 40:
        first = torch.cat([torch.arange(4), torch.arange(8, 40).view(4, 2, n)[:, 0].flatten()])
        second = torch.tensor([i for i in range(40) if i not in first.tolist()])
        cosine = torch.nn.functional.normalize(alice.projector(z), dim=1)
        cosine = cosine @ torch.nn.functional.normalize(alice.rows, dim=1).T
        average = (cosface(cosine[first], targets[first]) + cosface(cosine[second], targets[second])) / 2
        torch.testing.assert_close(whole, average)


def test_head_of_sixty_classes_has_1830_rows() -> None:
    alice = AngularPenalty(nets.build("tiny_resnet18"), 64, 60, 0, width=8)
    assert alice.rows.shape == (1830, 8)
    assert [type(layer) for layer in alice.projector[::2]] == [nn.Linear, nn.ReLU, nn.BatchNorm1d]
    assert not alice.projector[4].affine


def test_means_do_not_depend_on_order_or_batch_size_and_scale_of_features_changes_nothing() -> None:
    z, y = blobs(4, 15, 5)
    one, all_at_once = on_features(ALICE, 5), on_features(ALICE, 5)
    feed(one, z, y, 1)
    feed(all_at_once, z.flip(0), y.flip(0), 60)
    for label in range(4):
        expected = z[y == label].mean(0)
        for learner in (one, all_at_once):
            column = learner.classes_.tolist().index(label)
            torch.testing.assert_close(learner.stats.mean[column], expected, atol=1e-6, rtol=0)
    assert torch.equal(one.score(z).argmax(1), one.score(7.5 * z).argmax(1))


def test_a_class_of_one_image_answers_itself() -> None:
    z, y = blobs(3, 10, 6)
    learner = on_features(ALICE, 6)
    feed(learner, z, y)
    only = torch.tensor([[0.0, 9.0, 0.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    learner.learn(only, torch.tensor([8]))
    assert learner.classes_[learner.score(only).argmax()].item() == 8


def test_nothing_of_the_network_changes_after_the_base_session() -> None:
    learner = fitted(ALICE, {})
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    teach(learner, novel())
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())
    assert learner.network_state_names() == {f"network.{name}" for name in before}  # projector and rows are gone
