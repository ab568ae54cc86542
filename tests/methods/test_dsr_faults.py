"""Faults of the published code that no other test of DSR shows, and the table that says which test shows which.

Each test fails on the faulty behaviour. Faults are numbered as in the table of docs/methods/dsr.md.
"""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl import metrics
from nocl.checks import BASE_LABELS, easy_images, split
from nocl.methods import make
from nocl.methods.dsr import DSR
from nocl.pretrain import CrossEntropy, WrongBaseError
from nocl.run import run
from nocl.stats.class_stats import ClassStats, tukey
from nocl.streams import Stream, class_incremental
from tests.support.dsr_cases import HIGH, D, fitted, learn, session_learner, taught
from tests.support.feature_nets import blobs
from tests.support.small_data import small

ROOT = Path(__file__).parents[2]
FAULTS = 25


def stream(order_seed: int = 0) -> Stream:
    return class_incremental(small(10, per_class=4), partition="60+20x2", base_batch_size=12, order_seed=order_seed)


def quick(**params: Any) -> DSR:
    recipe = {"epochs": 1, "lr": 0.05, "compile": False, **params.pop("recipe", {})}
    made = make("dsr", backbone="tiny_resnet18", **{"dim": HIGH, "iterations": 1, "recipe": recipe, **params})
    assert isinstance(made, DSR)
    return made


def test_b1_the_end_of_a_session_needs_no_data_and_raises_nothing() -> None:
    _, _, outputs = session_learner()
    assert outputs["official_final_update_raises"] == "TypeError"  # the call with an argument it does not take
    assert list(inspect.signature(DSR.end_session).parameters) == ["self"]
    learner = taught()
    assert learner.pending_.item() == 0  # came to its end
    assert bool(learner.high.mean.isfinite().all())


def test_b5_a_whole_run_is_evaluated_by_the_prototypes() -> None:
    learner = quick()
    result = run(learner, stream())
    assert result.finished
    x = next(iter(split(easy_images((0, 1), 4, seed=1), 8))).x
    f = learner.project(tukey(learner.features(x), learner.power))
    cosines = torch.nn.functional.cosine_similarity(f[:, None], learner.high.mean.float()[None], dim=2)
    assert torch.equal(learner.predict(x), learner.classes_[cosines.argmax(1)])


def test_b11_base_networks_are_kept_apart_by_seed_order_and_tau(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    settings: list[tuple[DSR, Stream]] = [
        (quick(), stream()),
        (quick(seed=1), stream()),
        (quick(), stream(order_seed=1)),
        (quick(recipe={"tau": 0.07}), stream()),
    ]
    for count, (learner, some) in enumerate(settings, 1):
        learner.fit_base(some.base, workdir=folder)
        assert len(list(folder.glob("base-*.safetensors"))) == count
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    quick().fit_base(stream().base, workdir=folder)  # found again, and not written again
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_b11_a_network_that_has_seen_novel_classes_is_refused(tmp_path: Path) -> None:
    quick().fit_base(stream().base, workdir=tmp_path)
    (path,) = tmp_path.glob("base-*.safetensors")
    assert not set(stream(order_seed=1).base.classes) >= set(stream().base.classes)
    with pytest.raises(WrongBaseError, match="brings later"):
        quick(weights=str(path)).fit_base(stream(order_seed=1).base)


def test_b12_learners_side_by_side_share_nothing_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    z, y = blobs(6, 12, D, seed=1)
    z = z.float()

    def play(*learners: DSR) -> DSR:
        for label in (7, 8):
            for offset, learner in enumerate(learners):  # each its own classes
                learner.learn(z[y == label - 4], torch.full((12,), label + 10 * offset))
        for learner in learners:
            learner.end_session()
        return learners[0]

    alone, beside = play(taught()).state_dict(), play(taught(), taught(n_base=3)).state_dict()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    assert list(tmp_path.iterdir()) == []


def test_b16_all_that_may_learn_is_the_projection_and_all_of_it_learns() -> None:
    learner = fitted(outer_lr=1.0, iterations=5)
    assert {name.split(".")[0] for name, _ in learner.named_parameters()} == {"network", "projection"}
    before = {name: p.detach().clone() for name, p in learner.projection.named_parameters()}
    learn(learner)
    still = [name for name, p in learner.projection.named_parameters() if torch.equal(p, before[name])]
    assert still == []


def test_b17_every_statistic_has_a_row_for_every_class() -> None:
    learner = taught(4, 2)
    kept = {name for name, module in learner.named_modules() if isinstance(module, ClassStats)}
    assert kept == {"vanilla", "high"}  # no signs of means beside them
    for stats in (learner.vanilla, learner.high):
        assert len(stats.mean) == len(stats.count) == len(stats.scatter) == 6
        assert bool((stats.count > 0).all())


def test_b18_heads_of_the_base_session_have_a_row_for_each_base_class_and_no_more() -> None:
    learner = quick(recipe={"objective": "ce"})
    learner.meet(BASE_LABELS)
    objective = learner.train_network(split(easy_images(BASE_LABELS, 4, seed=1), 8), None).objective
    assert isinstance(objective, CrossEntropy)
    assert {name: len(head.weight) for name, head in objective.heads.items()} == {
        "vanilla": len(BASE_LABELS),
        "high": len(BASE_LABELS),
    }


def test_b19_accuracy_weighs_by_the_classes_there_are() -> None:
    base, novel = 0.6, 0.3
    assert metrics.acc((base, novel), (30, 20)) == pytest.approx(0.48)  # of 50 classes, not of 100
    sizes = [30] + [1] * 20  # 21 sessions of CORE-50
    assert metrics.acc([base, *[novel] * 20], sizes) == pytest.approx(0.48)
    for partition, size in (("60+4x10", 30), ("40+6x10", 20), ("80+2x10", 40)):
        blocks = class_incremental(small(50, per_class=1), partition=partition).blocks
        assert len(blocks[0]) == size
        assert len(blocks) == 11


def test_b20_no_module_names_a_device_of_its_own() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "src" / "nocl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and not _asks_torch(node)
    ]
    assert found == []


def _asks_torch(node: ast.Attribute) -> bool:
    """``torch.cuda...`` asks what there is; ``tensor.cuda()`` moves without being told to."""
    return isinstance(node.value, ast.Name) and node.value.id == "torch"


def test_every_fault_has_a_test_that_exists() -> None:
    rows = re.findall(r"^\| B(\d+) \|.*\|(.*)\|$", (ROOT / "docs/methods/dsr.md").read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, FAULTS + 1))
    for number, tests in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
        assert named, f"B{number} names no test"
        for file, test in named:
            assert f"def {test}(" in next((ROOT / "tests").rglob(file)).read_text("utf-8"), (
                f"B{number}: no {test} in {file}"
            )
