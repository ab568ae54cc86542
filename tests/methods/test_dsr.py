"""DSR: numbers of the reference code where it is right, hand-made ones where it is not, and the method's invariants."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nocl.checks import BASE_LABELS, NOVEL_LABELS, easy_images, split
from nocl.methods import make
from nocl.methods._saving import load, save
from nocl.methods.dsr import DSR
from nocl.pretrain import Objective, Trained
from nocl.stats.class_stats import tukey
from tests.support.dsr_cases import CASES, HIGH, D, fitted, learn, session_learner, taught
from tests.support.feature_nets import blobs, feed, on_features

# --- the reference's numbers ----------------------------------------------------------------------------------------


def test_a_whole_session_follows_the_reference() -> None:
    learner, inputs, outputs = session_learner()
    order = [outputs["base_stats"]["class_label"].index(int(c)) for c in learner.classes_]
    for stored, expected in (
        (learner.vanilla.mean, "gaa_mean"),
        (learner.vanilla.std(), "gaa_std"),
        (learner.high.mean, "class_mean"),
    ):
        wanted = torch.tensor(outputs["base_stats"][expected])[order]
        torch.testing.assert_close(stored.float(), wanted, atol=1e-5, rtol=1e-5)
    feed(learner, torch.tensor(inputs["novel_x"]), torch.tensor(inputs["novel_y"]))
    labels = learner.classes_.tolist()
    where = [labels.index(c) for c in (4, 5)]
    for stored, expected in (
        (learner.vanilla.mean, "novel_vanilla_mean"),
        (learner.vanilla.std(), "novel_vanilla_std"),
    ):
        torch.testing.assert_close(stored[where].float(), torch.tensor(outputs[expected]), atol=1e-5, rtol=1e-5)
    given = iter(torch.tensor(inputs["pseudo_features"]))  # [T, 120, 6], rows class by class in label order

    def replayed(n_base: int, n_novel: int) -> tuple[Tensor, Tensor]:
        assert n_base == n_novel == 20
        return next(given), torch.tensor([labels.index(c) for c in range(6) for _ in range(20)])

    learner.sample = replayed  # type: ignore[method-assign]
    learner.end_session()
    assert learner.log_["upper_loss"] == pytest.approx(outputs["loss"], abs=1e-5)
    first_steps = [losses[0] for losses in outputs["inner_losses"]]
    assert learner.log_["lower_loss"] == pytest.approx(first_steps, abs=1e-4)
    prototypes = learner.high.mean.float()[[labels.index(c) for c in range(6)]]
    torch.testing.assert_close(prototypes, torch.tensor(outputs["final_class_mean"]), atol=1e-4, rtol=1e-4)
    state = learner.projection.state_dict()
    for name, value in outputs["final_projection_state"].items():
        torch.testing.assert_close(state[name], torch.tensor(value), atol=1e-4, rtol=1e-4)
    cosines = learner.score(torch.tensor(inputs["x_test"]))[:, [labels.index(c) for c in range(6)]]
    torch.testing.assert_close(cosines, torch.tensor(outputs["test_cosines_numpy"]), atol=1e-4, rtol=0)
    assert cosines.argmax(1).tolist() == outputs["test_argmax_numpy"]


@pytest.mark.parametrize("run", ["official", "long_lr1", "official_base3"])
def test_the_lower_level_follows_the_reference(run: str) -> None:
    case = CASES["dsr_refine"]
    expected = case["outputs"]["runs"][run]
    h, n_base = torch.tensor(case["inputs"]["h"]), expected["base"]
    learner: DSR = on_features(DSR, D, dim=16, inner_steps=expected["steps"], inner_lr=expected["lr"])
    moved = learner.lower_level(h[:n_base], h[n_base:])
    torch.testing.assert_close(moved, torch.tensor(expected["returned_after_mixing"])[n_base:], atol=1e-5, rtol=0)
    learner.rho = 1.0
    moved = learner.lower_level(h[:n_base], h[n_base:])
    wanted = torch.tensor(expected["refined_novel_before_mixing"])
    torch.testing.assert_close(moved, wanted, atol=1e-5, rtol=1e-5)


def test_one_novel_class_is_refined_without_a_pair_term() -> None:
    case = CASES["dsr_refine"]
    h = torch.tensor(case["inputs"]["h"])
    learner: DSR = on_features(DSR, D, dim=16, rho=1.0)
    moved = learner.lower_level(h[:8], h[8:])
    torch.testing.assert_close(moved, torch.tensor(case["corrected"]["one_novel_refined"]), atol=1e-5, rtol=1e-5)


def sampling_learner(**params: Any) -> tuple[DSR, dict[str, Any]]:
    case = CASES["dsr_sampling"]
    learner: DSR = on_features(DSR, 4, dim=8, **params)
    learner.meet(case["inputs"]["labels"])
    learner.n_base_.fill_(case["inputs"]["base"])
    learner.vanilla.count.fill_(10)
    learner.vanilla.mean.copy_(torch.tensor(case["inputs"]["mean"]))
    learner.vanilla.scatter.copy_(10 * torch.tensor(case["inputs"]["std"], dtype=torch.float64).square())
    return learner, case


@pytest.mark.parametrize(("extra", "block"), [(0.05, "outputs"), (0.0, "corrected")])
def test_sampling_has_the_stated_means_and_stds(extra: float, block: str) -> None:
    learner, case = sampling_learner(base_std_extra=extra)
    v, columns = learner.sample(20, 20)
    assert learner.classes_[columns].tolist() == case["outputs"]["labels_20"]  # class after class, K each
    assert list(v.shape) == case["outputs"]["shape_20"]
    _, columns = learner.sample(100, 500)  # the reference's defaults, for base and novel classes
    counts = case["outputs"]["labels_default_counts"]
    assert columns.bincount().tolist() == [counts[str(label)] for label in learner.classes_.tolist()]
    v, columns = learner.sample(20000, 20000)
    scale = torch.tensor(case[block]["scale_used" if extra else "scale"])
    for c in range(5):
        torch.testing.assert_close(v[columns == c].std(0), scale[c], atol=0.01, rtol=0.03)
        mean = torch.tensor(case["inputs"]["mean"])[c]
        torch.testing.assert_close(v[columns == c].mean(0), mean, atol=0.02, rtol=0.02)


# --- the faults of the published code ---------------------------------------------------------------------------------


def test_b2_nothing_is_written_back() -> None:
    first, plain = taught(iterations=0), taught(refine=False)
    assert torch.equal(plain.high.mean, first.high.mean)  # although the projection has moved
    assert not torch.equal(plain.projection.layer1[0].weight, first.projection.layer1[0].weight)


def test_b3_samples_are_counted_for_each_class() -> None:
    learner = taught(4, 2)
    for n_base, n_novel in ((3, 7), (0, 5), (20, 20)):
        _, columns = learner.sample(n_base, n_novel)
        assert columns.bincount(minlength=6).tolist() == [n_base] * 4 + [n_novel] * 2


def test_b4_state_goes_by_class_in_whatever_order_classes_come() -> None:
    z, y = blobs(6, 12, D)
    z = z.float()
    learners = []
    for order in ([4, 5], [5, 4]):
        learner: DSR = on_features(DSR, D, dim=HIGH, iterations=0, recipe={"head_epochs": 0})
        learner.fit_base_features([(z[y < 4], y[y < 4])])
        for c in order:
            learner.learn(z[y == c], y[y == c])
        learner.end_session()
        learners.append(learner)
    a, b = learners
    assert a.classes_[-2:].tolist() == [4, 5]
    assert b.classes_[-2:].tolist() == [5, 4]
    torch.testing.assert_close(a.high.mean[[5, 4]], b.high.mean[[4, 5]])
    assert torch.equal(a.classes_[a.score(z).argmax(1)], b.classes_[b.score(z).argmax(1)])


def test_b6_a_dead_unit_has_the_floor_as_its_std() -> None:
    learner: DSR = on_features(DSR, D, dim=HIGH, power=1.0, recipe={"head_epochs": 0})
    learner.fit_base_features([(torch.zeros(5, D), torch.zeros(5, dtype=torch.int64))])
    v, _ = learner.sample(4000, 0)
    assert v.std().item() == pytest.approx(1e-4, rel=0.05)


def test_b7_refinement_is_inert_with_the_official_rates_and_not_with_the_papers() -> None:
    draw = torch.Generator().manual_seed(0)
    h = 0.6 * torch.randn(1, 2048, generator=draw) + torch.randn(64, 2048, generator=draw)  # mean cosine about 0.26
    moved = {}
    for preset in ("official", "paper"):
        learner: DSR = on_features(DSR, D, **{**DSR.presets[preset], "dim": 2048})
        novel = h[60:]
        for _ in range(20):
            novel = learner.lower_level(h[:60], novel)
        moved[preset] = ((novel - h[60:]).norm() / h[60:].norm()).item()
    assert moved["official"] < 1e-3  # one reason to report the ablation without a lower level
    assert moved["paper"] > 100 * moved["official"]


def test_b8_exp_turns_prototypes_away_and_doubleexp_makes_them_orthogonal() -> None:
    strong: dict[str, Any] = {"rho": 1.0, "inner_lr": 0.1, "inner_steps": 200}
    base, novel = torch.zeros(1, HIGH), torch.ones(1, HIGH)
    base[0, :8] = 1.0
    ends = {}
    for phi in ("exp", "doubleexp"):
        learner: DSR = on_features(DSR, D, dim=HIGH, phi=phi, **strong)
        moved = learner.lower_level(base, novel).tanh()
        ends[phi] = torch.cosine_similarity(moved, base.tanh()).item()
    assert ends["exp"] < -0.3
    assert abs(ends["doubleexp"]) < 0.05


def test_b9_a_session_of_one_class_gives_finite_losses() -> None:
    learner = taught(4, 1, rho=1.0)
    for curve in ("lower_loss", "upper_loss"):
        points = torch.tensor(learner.log_[curve])
        assert len(points) == 3
        assert bool(points.isfinite().all())
    assert bool(learner.high.mean.isfinite().all())


def test_b13_no_sample_is_dropped_and_statistics_equal_two_passes() -> None:
    n = 13  # leaves a short last batch
    learner = taught(n=n, iterations=0)
    z, y = blobs(6, n, D)
    f = tukey(z.float(), 0.5).double()
    assert learner.vanilla.count.tolist() == [n] * 6
    for column, label in enumerate(learner.classes_.tolist()):
        rows = f[y == label]
        torch.testing.assert_close(learner.vanilla.mean[column], rows.mean(0), atol=1e-5, rtol=0)
        torch.testing.assert_close(learner.vanilla.std()[column], rows.std(0, unbiased=False), atol=1e-5, rtol=0)
        high = learner.project(rows.float()).double().mean(0)
        torch.testing.assert_close(learner.high.mean[column], high, atol=1e-5, rtol=0)


def test_b21_samples_may_be_negative_as_in_the_code() -> None:
    assert (sampling_learner()[0].sample(100, 100)[0] < 0).any()


def test_b23_curves_are_plain_numbers() -> None:
    log = taught().log_
    assert json.loads(json.dumps(log)) == log
    assert len(log["upper_loss"]) == len(log["lower_loss"]) == 3  # type: ignore[arg-type]
    assert len(log["cosine_before"]) == len(log["cosine_after"]) == 1  # type: ignore[arg-type]


def test_b24_only_the_projection_learns_and_leaves_no_gradient() -> None:
    learner = fitted()
    before = copy.deepcopy(learner.state_dict())
    learn(learner)
    after = learner.state_dict()
    changed = {n for n in before if before[n].shape != after[n].shape or not torch.equal(before[n], after[n])}
    assert {n for n in changed if n.startswith("network.")} == set()  # weights and batch-normalisation buffers
    assert {n for n in changed if "running" in n or "num_batches" in n} == set()  # B14: nor theta2's buffers
    assert "projection.layer1.0.weight" in changed
    assert "projection.layer2.1.weight" in changed  # the gains do learn
    assert all(p.grad is None for p in learner.parameters())


def test_b25_base_prototypes_keep_every_bit() -> None:
    start, end = taught(end=False, rho=1.0, inner_lr=1.0), taught(rho=1.0, inner_lr=1.0)
    assert torch.equal(start.high.mean[:4], end.high.mean[:4])
    assert torch.equal(start.vanilla.mean, end.vanilla.mean)
    assert not torch.equal(start.high.mean[4:], end.high.mean[4:])


# --- invariants -------------------------------------------------------------------------------------------------------


def test_every_image_passes_the_network_once() -> None:
    learner = fitted()
    passed: list[int] = []
    learner.network.register_forward_hook(lambda _, inputs, __: passed.append(len(inputs[0])))
    learn(learner, n=6)
    assert sum(passed) == 6 * len(NOVEL_LABELS)  # B15; refinement takes sampled features, no image


def test_the_projection_of_the_base_session_is_taken_over() -> None:
    learner = fitted()
    fresh = DSR(backbone="tiny_resnet18", dim=HIGH)
    assert not torch.equal(learner.projection.layer1[0].weight, fresh.projection.layer1[0].weight)
    assert learner.projection.layer1[1].num_batches_tracked > 0


def test_on_features_alone_the_projection_is_trained_once() -> None:
    learner: DSR = on_features(DSR, D, dim=HIGH, recipe={"objective": "ce", "head_epochs": 5})
    z, y = blobs(4, 40, D)
    learner.fit_base_features(zip(z.float().split(50), y.split(50)))
    losses = learner.log_["base_loss"]
    assert losses[-1] < losses[0]  # type: ignore[index,operator]
    assert learner.vanilla.count.tolist() == [40] * 4
    before = learner.projection.layer1[0].weight.clone()
    learner.fit_base_features([(z.float(), y)])
    assert torch.equal(before, learner.projection.layer1[0].weight)


def test_with_a_network_but_no_objective_the_projection_comes_from_features(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = DSR(backbone="tiny_resnet18", dim=HIGH, recipe={"head_epochs": 1})
    bare = Trained(Objective(learner.network, learner.feature_dim, 4, 0), {}, [])
    monkeypatch.setattr(learner, "train_network", lambda base, workdir: bare)
    learner.fit_base(split(easy_images(BASE_LABELS, 4, seed=1), 8))
    assert learner.projection.layer1[1].num_batches_tracked > 0


def test_without_iterations_it_is_cosine_ncm_in_the_projected_space() -> None:
    learner = taught(iterations=0)
    z, y = blobs(6, 12, D)
    f = learner.project(tukey(z.float(), 0.5))
    means = torch.stack([f[y == c].mean(0) for c in learner.classes_])
    cosines = torch.nn.functional.cosine_similarity(f[:, None], means[None], dim=2)
    torch.testing.assert_close(learner.score(z.float()), cosines, atol=1e-5, rtol=0)


def test_the_upper_level_aligns_and_the_lower_level_separates() -> None:
    learner = taught(iterations=30, outer_lr=0.5, rho=1.0, phi="doubleexp", inner_lr=0.1)
    upper, lower = learner.log_["upper_loss"], learner.log_["lower_loss"]
    assert upper[-1] < upper[0]  # type: ignore[index,operator]
    assert lower[-1] < lower[0]  # type: ignore[index,operator]


def test_each_level_can_be_switched_off() -> None:
    start = taught(iterations=0)
    no_lower, no_upper = taught(refine=False), taught(align=False, rho=1.0)
    assert torch.equal(no_lower.high.mean, start.high.mean)
    assert "lower_loss" not in no_lower.log_
    for name, tensor in no_upper.projection.state_dict().items():
        assert torch.equal(tensor, start.projection.state_dict()[name]), name
    assert "upper_loss" not in no_upper.log_


def test_a_second_end_of_session_changes_nothing() -> None:
    learner = taught()
    before = copy.deepcopy(learner.state_dict())
    learner.end_session()
    after = learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_old_novel_classes_stay_refinable_and_base_ones_do_not() -> None:
    learner = taught(rho=1.0, inner_lr=1.0)
    before = learner.high.mean.clone()
    z, _ = blobs(7, 5, D, seed=3)
    learner.learn(z.float()[:5], torch.full((5,), 99))
    learner.end_session()
    assert torch.equal(learner.high.mean[:4], before[:4])
    assert not torch.equal(learner.high.mean[4:6], before[4:6])


def test_refine_every_needs_no_session_end() -> None:
    learner = taught(end=False, refine_every=20)  # 24 novel rows in batches of 10
    assert len(learner.log_["upper_loss"]) == 3  # type: ignore[arg-type]  # three iterations, once
    assert learner.pending_.item() == 4


def test_saved_in_the_middle_it_continues_with_the_same_bits(tmp_path: Path) -> None:
    straight, broken = fitted(), fitted()
    save(broken, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert isinstance(loaded, DSR)
    learn(straight)
    learn(loaded)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert straight.log_ == loaded.log_


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_presets_build(preset: str) -> None:
    learner = DSR(backbone="tiny_resnet18", **{"dim": HIGH, **DSR.presets[preset]})  # type: ignore[arg-type]
    assert learner.full_recipe.projection == HIGH
    assert learner.full_recipe.spaces == ("high" if preset == "official" else "both")


def test_an_objective_without_projection_is_refused() -> None:
    learner = make(
        "dsr", backbone="tiny_resnet18", dim=HIGH,
        recipe={"objective": "nocl.methods.dvc:DualViewObjective", "epochs": 0},
    )  # fmt: skip
    with pytest.raises(ValueError, match="needs an objective that trains its projection"):
        learner.fit_base(split(easy_images(BASE_LABELS, 2, seed=1), 8))


def test_the_fast_preset_is_what_the_search_on_base_classes_chose() -> None:
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "dsr_fast.json"
    found = json.loads(file.read_text("utf-8"))
    rows = {(row["samples"], row["iterations"], row["outer_lr"]): row["hm"] for row in found["rows"]}
    fast = DSR.presets["fast"]
    assert {name: found["chosen"][name] for name in fast} == fast
    assert rows[fast["samples"], fast["iterations"], fast["outer_lr"]] >= rows[20, 20, 0.01] - 0.5
