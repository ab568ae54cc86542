"""PASS: rotation labels, the radius, the three losses, and what a session may change."""

import pytest
import torch
import torch.nn.functional as F

from nocl.checks import easy_images, fitted, novel, teach
from nocl.methods._distilling import RotatedCrossEntropy, rotation_labels
from nocl.methods.pass_ import PASS, distance, radius_of
from nocl.nets import build
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.seeding import generator
from nocl.pretrain.augment import rotated
from nocl.stats.class_stats import ClassStats
from tests.support.feature_nets import on_features
from tests.support.reference_cases import CASES, floats


def test_four_quarter_turns_and_labels_equal_the_reference() -> None:
    expected, y = CASES["pass_rotation"]["outputs"], torch.tensor(CASES["pass_rotation"]["inputs"]["labels"])
    x = torch.arange(2 * 3 * 32 * 32, dtype=torch.float32).view(2, 3, 32, 32)
    turned = rotated(x)
    assert rotation_labels(y).tolist() == expected["labels"]
    assert turned[:, 0, 0, :4].tolist() == expected["first_pixels"]
    corners = turned[:, 0][:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.tolist() == expected["corners"]
    again = x
    for _ in range(4):
        again = rotated(again)[1::4]
    assert torch.equal(again, x)


def stats_of(z: torch.Tensor, y: torch.Tensor) -> ClassStats:
    stats = ClassStats(z.shape[1], "diagonal")
    stats.grow(int(y.max()) + 1)
    stats.update(z, y)
    return stats


def test_radius_and_means_equal_the_reference() -> None:
    case = CASES["pass_radius"]
    inputs, pycil = case["inputs"], case["pycil"]
    z, y = floats(inputs["features"]), torch.tensor(inputs["labels"])
    assert radius_of(stats_of(z, y)) == pytest.approx(case["outputs"]["radius"], abs=1e-5)
    z_all = torch.cat([z, floats(inputs["tail_features"])])
    y_all = torch.cat([y, torch.tensor(inputs["tail_labels"])])
    complete = stats_of(z_all, y_all)
    assert radius_of(complete) == pytest.approx(case["corrected"]["radius"], abs=1e-5)
    torch.testing.assert_close(complete.mean.float(), floats(case["corrected"]["prototypes"]), atol=1e-5, rtol=0)
    new = [floats(pycil["inputs"][f"features_class{c}"]) for c in (4, 5)]
    labels = torch.cat([y, *[torch.full((len(part),), c) for c, part in zip((4, 5), new)]])
    everything = radius_of(stats_of(torch.cat([z, *new]), labels))
    assert everything == pytest.approx(pycil["outputs"]["radius_after_second_task_all_classes"], abs=1e-5)


def test_radius_is_the_standard_deviation_and_one_image_has_no_part_in_it() -> None:
    z = 0.7 * torch.randn(20000, 8, generator=generator(1)) + 3
    stats = stats_of(z, torch.zeros(20000, dtype=torch.int64))
    assert radius_of(stats) == pytest.approx(0.7, rel=0.02)
    before = radius_of(stats)
    stats.grow(2)  # a class of one image, a class of none
    stats.update(torch.ones(1, 8), torch.tensor([1]))
    assert radius_of(stats) == before
    assert radius_of(ClassStats(8, "diagonal")) == 0


def test_loss_equals_the_reference() -> None:
    case = CASES["pass_incremental_loss"]
    inputs, parts = case["inputs"], case["components_recomputed"]
    learner = on_features(PASS, 8)
    learner.meet(range(6))
    learner.head.load_state_dict({"weight": floats(inputs["fc_weight"]), "bias": floats(inputs["fc_bias"])})
    learner.stats.mean[:4] = floats(inputs["prototypes"]).double()
    learner.radius_.fill_(inputs["radius"])
    x, labels, picked = floats(inputs["x"]), torch.tensor(inputs["target"]), torch.tensor(inputs["picks"])
    z, before = x @ floats(inputs["Wf"]).T, x @ floats(inputs["Wo"]).T
    noise = floats(inputs["noise"])
    total = learner.terms(z, before, labels, picked, noise).item()
    assert total == pytest.approx(case["outputs"]["total"], rel=1e-4)
    assert F.cross_entropy(learner.head(z) / 0.1, labels).item() == pytest.approx(parts["L_cls"], rel=1e-4)
    pseudo = floats(inputs["prototypes"])[picked] + inputs["radius"] * noise
    assert learner.reminder(pseudo, picked).item() == pytest.approx(parts["L_proto"], rel=1e-4)
    assert distance(z, before).item() == pytest.approx(parts["L_kd"], rel=1e-4)


def test_distance_by_hand() -> None:
    assert distance(torch.ones(4, 4), torch.zeros(4, 4)).item() == 4
    assert distance(torch.ones(4, 4), torch.zeros(4, 4), "mean").item() == 2


def test_a_grown_head_gives_old_logits_bit_for_bit() -> None:
    head = GrowingLinear(160)
    head.grow(4 * 60, generator(1))
    z = torch.rand(40, 160, generator=generator(2))
    before, rows = head(z), head.weight.clone()
    head.grow(4 * 4, generator(3))
    assert torch.equal(head.weight[:240], rows)
    assert torch.equal(head(z)[:, :240], before)


def test_base_objective_is_cross_entropy_of_joint_labels_at_a_temperature() -> None:
    network = build("tiny_resnet18").eval()
    objective = RotatedCrossEntropy(network, 64, 3, 0)
    x, y = torch.rand(2, 3, 32, 32, generator=generator(1)), torch.tensor([2, 0])
    by_hand = F.cross_entropy(objective.head(network(rotated(x))) * 10, torch.tensor([8, 9, 10, 11, 0, 1, 2, 3]))
    assert objective.head.weight.shape == (12, 64)
    torch.testing.assert_close(objective.loss(network, x, y, generator(0)), by_hand)


def test_only_old_classes_are_recalled_and_by_their_unturned_row() -> None:
    learner = fitted(PASS, {})
    picked = learner.picks(500)
    assert set(picked.tolist()) == {0, 1, 2, 3}
    means = learner.stats.mean.float()
    wanted = F.cross_entropy(learner.head(means[picked]) / 0.1, 4 * picked)
    assert torch.equal(learner.reminder(means[picked], picked), wanted)
    teach(learner, novel(5))
    assert set(learner.picks(500).tolist()) == set(range(6))


def drift(learner: PASS) -> float:
    """How far the features of new images are from those of the network before the session."""
    x = easy_images((12, 5), 3, seed=5).x
    before = learner.features(x)
    for images, labels in novel(40, size=5):
        learner.observe(images, labels)
    return float((learner.features(x) - before).abs().max())


def test_distillation_holds_features_where_they_were() -> None:
    free, held = fitted(PASS, {}), fitted(PASS, {})
    for learner, weight in ((free, 0.0), (held, 1e6)):
        learner.freeze_batchnorm, learner.weight_kd, learner.adam.lr = True, weight, 1e-6
    held_drift = drift(held)
    assert held_drift < 1e-3
    assert drift(free) > 20 * held_drift


def test_preset_slow_moves_features_less_and_leaves_the_batch_statistics() -> None:
    usual, slow = fitted(PASS, {}), fitted(PASS, PASS.presets["slow"])
    statistics = {name: value.clone() for name, value in slow.network.named_buffers()}
    assert drift(slow) < drift(usual) / 2
    assert all(torch.equal(value, statistics[name]) for name, value in slow.network.named_buffers())
    assert any(not torch.equal(value, statistics[name]) for name, value in usual.network.named_buffers())


def test_means_are_of_the_features_as_they_came() -> None:
    learner = fitted(PASS, {})
    x, y = easy_images((12,), 4, seed=2)
    learner.observe(x, y)
    expected = learner.features(x).double().mean(0)
    torch.testing.assert_close(learner.stats.mean[4], expected)
    learner.observe(x.flip(3), y)  # the network moved on; the mean of both steps is kept
    both = (expected + learner.features(x.flip(3)).double().mean(0)) / 2
    torch.testing.assert_close(learner.stats.mean[4], both)


def test_a_session_end_makes_the_network_the_previous_one_and_restarts_adam() -> None:
    learner = fitted(PASS, {})
    start = {name: value.clone() for name, value in learner.network.state_dict().items()}
    for x, y in novel(5):
        learner.observe(x, y)
    assert all(torch.equal(value, start[name]) for name, value in learner.previous.state_dict().items())
    assert int(learner.known_) == 4
    assert int(learner.adam.steps) > 0
    learner.end_session()
    now = learner.network.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in learner.previous.state_dict().items())
    assert int(learner.known_) == 6
    assert all(not buffer.any() for buffer in learner.adam.buffers())


def test_a_session_logs_the_mean_of_each_term_as_it_enters_the_loss() -> None:
    learner = fitted(PASS, {})
    z, before, noise = torch.ones(4, 64), torch.zeros(4, 64), torch.zeros(2, 64)
    labels, picked = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1])
    far = learner.terms(z, before, labels, picked, noise)
    near = learner.terms(z, z, labels, picked, noise)
    far, near = far.detach(), near.detach()
    assert float(far - near) == pytest.approx(10 * 16)  # the norm of 4 x 64 ones, weight 10
    learner.end_session()
    assert learner.log_["distillation_loss"] == [80.0]
    kept = sum(learner.log_[name][0] for name in ("new_class_loss", "old_class_loss", "distillation_loss"))
    assert kept == pytest.approx(float(far + near) / 2, rel=1e-5)
    learner.end_session()
    assert learner.log_["distillation_loss"] == [80.0]  # a session without a step has no mean


def test_radius_of_all_classes_follows_new_ones_and_of_base_classes_stays() -> None:
    learner = fitted(PASS, {})
    base = float(learner.radius_)
    assert base > 0
    assert float(teach(learner, novel(5)).radius_) == base
    every = fitted(PASS, {"radius": "all"})
    assert float(every.radius_) == base
    assert float(teach(every, novel(5)).radius_) == pytest.approx(radius_of(every.stats))
    assert float(every.radius_) != base


def test_answers_are_classes_met_by_either_way() -> None:
    learner = teach(fitted(PASS, {}), novel())
    x = easy_images((7, 3, 40, 0, 12, 5), 4, seed=9).x
    assert learner.decision_function(x).shape == (24, 6)
    assert torch.equal(learner.decision_function(x), learner.head(learner.features(x))[:, ::4])
    learner.answer = "mean"
    own = learner.stats.mean.float()
    torch.testing.assert_close(F.normalize(own, dim=1).norm(dim=1), torch.ones(6))
    assert set(learner.predict(x).tolist()) <= {7, 3, 40, 0, 12, 5}
