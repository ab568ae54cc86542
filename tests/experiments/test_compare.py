"""The arena: cached features, courses, runs equal to those through images, the probe, the table, the command."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from nocl import nets
from nocl.checks import easy_images
from nocl.cli import app
from nocl.data import Dataset, ImageSet
from nocl.experiments import compare as arena
from nocl.experiments.compare import Contender, Contest, Heads, compare, course, feature_stream, stages_of
from nocl.experiments.features import FeatureData, extract, trained_classes
from nocl.experiments.linear_probe import linear_probe
from nocl.learner import FrozenLearner
from nocl.methods import METHODS, make
from nocl.methods.ncm import NCM
from nocl.nets import Backbone
from nocl.plumbing.files import write_tensors
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError, heads_on_features
from nocl.report.compare import arena_numbers, arena_table
from nocl.run import run
from nocl.streams import class_incremental
from tests.support.feature_nets import blobs

PARTITION = "60+20x2"  # of ten classes: six, then two sessions of two
ORDER = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()
BATCH_FREE = [
    name
    for name, cls in METHODS.items()
    if issubclass(cls, FrozenLearner) and not cls.depends_on_batching and not make(name).needs_heads()
]


def tiny() -> Dataset:
    """Ten classes of easy images."""
    sets = []
    for n, seed in ((24, 1), (4, 2)):
        x, y = easy_images(range(10), n, seed)
        noise = torch.randint(60, x.shape, generator=torch.Generator().manual_seed(seed))
        sets.append(ImageSet.of((x // 2 + noise).to(torch.uint8).numpy(), y.numpy()))
    return Dataset("tiny", *sets, class_names=tuple("abcdefghij"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "tiny.safetensors"
    network = nets.build("tiny_resnet18", seed=3)
    write_tensors(path, network.state_dict(), {"classes": ORDER[:6]})
    return path


@pytest.fixture(scope="module")
def features(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureData:
    return extract(tiny(), checkpoint, cache=tmp_path_factory.mktemp("cache"), backbone="tiny_resnet18")


def _contest(features: FeatureData, checkpoint: Path, **more: Any) -> Contest:
    return Contest(features, checkpoint, backbone="tiny_resnet18", **more)


def _own_features(name: str, features: FeatureData, checkpoint: Path, cache: Path) -> FeatureData:
    """Features of the stages a method takes, if not the usual ones."""
    stages = stages_of(_contender(name), "tiny_resnet18", 32)
    return (
        features
        if stages is None
        else extract(tiny(), checkpoint, cache=cache, backbone="tiny_resnet18", stages=stages)
    )


def _contender(name: str) -> Contender:
    return Contender(name, dict(METHODS[name].check_params))


# --- features ---


def test_cached_features_are_those_of_the_network(features: FeatureData, checkpoint: Path) -> None:
    learner = NCM(backbone="tiny_resnet18", weights=str(checkpoint))
    base = class_incremental(tiny(), partition=PARTITION).base
    learner.fit_base(base)
    x, _ = tiny().test.take([5, 17])
    cached, _ = features.test.take([5, 17])
    torch.testing.assert_close(learner.features(x), cached, atol=1e-5, rtol=1e-5)
    assert isinstance(features.train.images, np.memmap)
    assert trained_classes(checkpoint) == tuple(ORDER[:6])


def test_features_are_computed_once_for_each_network_and_again_if_left_unfinished(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny()
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    calls: list[int] = []
    real = NCM.features
    monkeypatch.setattr(NCM, "features", lambda self, x: (calls.append(len(x)), real(self, x))[1])
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    assert not calls
    next(tmp_path.glob("*/about.json")).unlink()
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18")
    assert sum(calls) == len(data.train) + len(data.test)
    other = tmp_path / "other.safetensors"
    write_tensors(other, nets.build("tiny_resnet18", seed=4).state_dict(), {"classes": ORDER[:6]})
    extract(data, other, cache=tmp_path, backbone="tiny_resnet18")
    extract(data, checkpoint, cache=tmp_path, backbone="tiny_resnet18", stages=[3, 4])
    assert len(list(tmp_path.glob("features-*"))) == 3


# --- courses ---


def test_order_zero_is_the_usual_stream_and_others_permute_the_novel_classes() -> None:
    trained = ORDER[:6]
    usual = class_incremental(tiny(), partition=PARTITION, order_seed=0).blocks
    courses = [course(PARTITION, 10, order, trained) for order in range(6)]
    assert courses[0].blocks == usual
    assert {each.blocks[0] for each in courses} == {tuple(trained)}
    assert len({each.blocks for each in courses}) >= 4  # of 24 permutations
    for each in courses:
        assert sorted(label for block in each.blocks for label in block) == list(range(10))
        assert (each.leaked, each.untrained) == (0, 0)


def test_a_leak_is_refused_unless_allowed_and_then_counted() -> None:
    with pytest.raises(WrongBaseError, match="2 of them would come again as novel"):
        course("40+20x3", 10, 0, ORDER[:6])
    each = course("40+20x3", 10, 3, ORDER[:6], allow_leak=True)
    assert (each.leaked, each.untrained) == (2, 0)
    assert set(each.blocks[0]) == set(ORDER[:4])
    larger = course("80+10x2", 10, 3, ORDER[:6])
    assert (larger.leaked, larger.untrained) == (0, 2)
    assert set(ORDER[:6]) < set(larger.blocks[0])


def test_contender_is_read_with_its_parameters() -> None:
    assert Contender.parse("ncm") == Contender("ncm", {})
    assert Contender.parse("rda@preset=compact,rank=8") == Contender("rda", {"storage": "lowrank", "rank": 8})
    for wrong in ("rda@rnak=8", "rda@preset=compcat", "rdaa"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            Contender.parse(wrong)
    wanted = {"stages": [1, 2], "activation": "sigmoid", "gamma": 1}
    assert Contender.parse("acil@stages=[1,2],activation=sigmoid,gamma=1") == Contender("acil", wanted)
    with pytest.raises(ValueError, match="write key=value"):
        Contender.parse("slda@fixed")


# --- runs ---


@pytest.mark.parametrize("name", BATCH_FREE)
def test_arena_gives_the_result_of_a_run_through_images(
    name: str, features: FeatureData, checkpoint: Path, tmp_path: Path
) -> None:
    contender, features = _contender(name), _own_features(name, features, checkpoint, tmp_path)
    learner = make(name, backbone="tiny_resnet18", weights=str(checkpoint), **contender.params)
    through_images = run(learner, class_incremental(tiny(), partition=PARTITION))
    courses = [course(PARTITION, 10, 0, ORDER[:6])]
    (result,) = _contest(features, checkpoint, exact_batches=True).runs(contender, courses)
    assert result.class_accuracy == through_images.class_accuracy
    assert result.base["sha256"] == through_images.base["sha256"]
    assert (result.method, result.state_bytes) == (name, through_images.state_bytes)


@pytest.mark.parametrize("name", BATCH_FREE)
def test_answers_do_not_depend_on_the_cut_into_batches(
    name: str, features: FeatureData, checkpoint: Path, tmp_path: Path
) -> None:
    features = _own_features(name, features, checkpoint, tmp_path)
    contest, scores = _contest(features, checkpoint), []
    each = course(PARTITION, 10, 1, ORDER[:6])
    fitted = contest.learner(_contender(name)).fit_base(feature_stream(features, each, 100).base)
    for rows in (1, 10, 500):
        learner = copy.deepcopy(fitted)
        for session in feature_stream(features, each, rows):
            for z, y in session:
                learner.observe(z, y)
            learner.end_session()
        scores.append(learner.score(features.test.take(range(40)).x)[:, learner.classes_.argsort()])
    for other in scores[1:]:
        assert (other - scores[0]).abs().max() < 1e-4 * scores[0].abs().max()  # float32


def test_courses_with_the_same_base_share_it_and_stay_apart(features: FeatureData, checkpoint: Path) -> None:
    contest, courses = _contest(features, checkpoint), [course(PARTITION, 10, order, ORDER[:6]) for order in (0, 1, 2)]
    together = contest.runs(_contender("slda"), courses)
    alone = contest.runs(_contender("slda"), courses[2:])
    assert together[2].class_accuracy == alone[0].class_accuracy
    assert [result.stream["order_seed"] for result in together] == [0, 1, 2]


ONE_VIEW = {"objective": "ce", "head_epochs": 3}
HEADS = [("dsr", {"dim": 32, "iterations": 3, "samples": 5}), ("ncm", {"space": "hyper", "dim": 32})]


@pytest.mark.parametrize(("name", "params"), HEADS)
def test_heads_on_features_are_those_of_a_run_where_that_has_one_view_and_one_batch(
    name: str, params: dict[str, JSON], features: FeatureData, checkpoint: Path
) -> None:
    params = {**params, "recipe": ONE_VIEW}
    learner = make(name, backbone="tiny_resnet18", weights=str(checkpoint), **params)
    through_images = run(learner, class_incremental(tiny(), partition=PARTITION, base_batch_size=6 * 24))
    contest = _contest(features, checkpoint, exact_batches=True)
    each = course(PARTITION, 10, 0, ORDER[:6])
    (result,) = contest.runs(Contender(name, params), [each])
    assert result.class_accuracy == through_images.class_accuracy
    assert result.log["base_loss"] == pytest.approx(through_images.log["base_loss"], rel=1e-4)
    assert result.state_bytes == through_images.state_bytes
    assert result.base["recipe"] == through_images.base["recipe"]
    assert "on features" in str(result.base["heads"])
    assert set(result.log["seconds_per_1000"]) == {"learn", "predict"}  # type: ignore[arg-type]


def test_methods_that_differ_only_online_share_their_heads(
    features: FeatureData, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings: list[int] = []

    def counted(network: Backbone, z: Tensor, *rest: Any, **more: Any) -> Any:
        trainings.append(len(z))
        return heads_on_features(network, z, *rest, **more)

    monkeypatch.setattr(arena, "heads_on_features", counted)
    once = course("60+20x2", 10, 0, ORDER[:6])
    recipe: dict[str, JSON] = {"head_epochs": 2, "objective": "ce"}
    settings: list[dict[str, JSON]] = [
        {"iterations": 3, "recipe": recipe}, {"iterations": 0, "recipe": recipe},
        {"iterations": 3, "power": 0.7, "recipe": recipe}, {"iterations": 3, "recipe": recipe | {"head_epochs": 3}},
    ]  # fmt: skip
    heads = Heads()
    shared, alone = [], []
    for params in settings:
        contender = Contender("dsr", {"dim": 16, "samples": 5, **params})
        shared += _contest(features, checkpoint, heads=heads).runs(contender, [once])
        alone += _contest(features, checkpoint).runs(contender, [once])
    assert trainings[0] == 6 * 24
    assert len(trainings) == 3 + 4  # the first two share; another power or recipe trains anew
    assert [result.class_accuracy for result in shared] == [result.class_accuracy for result in alone]
    assert shared[0].log["upper_loss"] == alone[0].log["upper_loss"]


def test_heads_see_base_features_only_and_ignore_rounds(features: FeatureData, checkpoint: Path) -> None:
    each = course(PARTITION, 10, 0, ORDER[:6])
    novel = np.isin(features.train.labels, ORDER[6:])
    rows = np.array(features.train.images)
    rows[novel] = 1e6
    spoilt = replace(features, train=ImageSet(rows, features.train.labels, np.arange(len(rows))))
    weights = []
    for data, rounds in ((features, 1), (features, 5), (spoilt, 1)):
        params: dict[str, JSON] = {"dim": 32, "recipe": {**ONE_VIEW, "head_rounds": rounds}}
        learner = _contest(data, checkpoint).learner(Contender("dsr", params))
        learner.fit_base(feature_stream(data, each, 100).base)
        weights.append(learner.state_dict()["projection.layer3.0.weight"])
    assert not torch.equal(weights[0], make("dsr", backbone="tiny_resnet18", dim=32).projection.layer3[0].weight)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_objective_that_needs_images_is_refused(features: FeatureData, checkpoint: Path) -> None:
    learner = _contest(features, checkpoint).learner(Contender("dsr", {"dim": 8, "recipe": {"objective": "sc+ssl"}}))
    with pytest.raises(ValueError, match=r"'sc\+ssl' needs images and only features are here"):
        learner.fit_base(feature_stream(features, course(PARTITION, 10, 0, ORDER[:6]), 100).base)


def test_method_that_trains_its_network_is_refused(features: FeatureData, checkpoint: Path) -> None:
    with pytest.raises(TypeError, match="finetune trains more than what follows the features"):
        _contest(features, checkpoint).learner(Contender("finetune"))


def test_finished_results_are_not_run_again(
    features: FeatureData, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses = [course(PARTITION, 10, order, ORDER[:6]) for order in range(3)]
    contest = _contest(features, checkpoint)
    first = compare([_contender("ncm")], lambda _: contest, courses, tmp_path)
    next(path for path in tmp_path.glob("*.json") if f"{PARTITION}-1-" in path.name).unlink()
    ran = []
    real = Contest.runs
    monkeypatch.setattr(
        Contest,
        "runs",
        lambda self, who, some, keep: (ran.extend(one.order for one in some), real(self, who, some, keep)),
    )
    second = compare([_contender("ncm")], lambda _: contest, courses, tmp_path)
    assert ran == [1]
    assert [result.class_accuracy for result in first] == [result.class_accuracy for result in second]


# --- the probe and the table ---


def test_probe_is_a_minimum_and_separates_what_can_be_separated() -> None:
    z, y = blobs(4, 60, 6, spread=0.2)
    probe = linear_probe(z.float(), y, 4, iterations=300)
    assert (probe.score(z.float()).argmax(1) == y).all()

    def loss(weight: torch.Tensor) -> float:
        standard = (z.float() - probe.mean) / probe.std
        entropy = torch.nn.functional.cross_entropy(standard @ weight.T + probe.bias, y)
        return float(entropy + probe.penalty / 2 * weight.square().sum())

    here = loss(probe.weight)
    for seed in range(5):
        step = 0.05 * torch.randn(probe.weight.shape, generator=torch.Generator().manual_seed(seed))
        assert loss(probe.weight + step) > here


def test_table_is_sorted_under_the_bound_with_leaks_marked(features: FeatureData, checkpoint: Path) -> None:
    contest = _contest(features, checkpoint)
    courses = [
        course(partition, 10, order, ORDER[:6], allow_leak=True)
        for partition in (PARTITION, "40+20x3")
        for order in (0, 1)
    ]
    results = [result for name in ("ncm", "slda") for result in contest.runs(_contender(name), courses)]
    bound = contest.bound()
    table = arena_table(results, bound)
    clean, leaking = table.split("### ")[2], table.split("### ")[1]
    assert "**Leak:** the network was trained on 2 of the classes" in leaking
    assert "Leak" not in clean
    rows = [line for line in clean.splitlines() if line.startswith("|")][2:]
    assert rows[0].startswith("| joint linear probe")
    accs = [float(line.split("|")[2].split("±")[0]) for line in rows[1:]]
    assert len(accs) == 2
    assert accs == sorted(accs, reverse=True)
    assert "±" in rows[1]
    numbers = arena_numbers(results, bound)
    assert sum(isinstance(row, dict) and len(row["acc"]) == 2 for row in numbers) == 4  # type: ignore[arg-type]


def test_methods_on_other_stages_stand_in_the_same_table_with_what_was_chosen(
    features: FeatureData, checkpoint: Path, tmp_path: Path
) -> None:
    each, deep = course(PARTITION, 10, 0, ORDER[:6]), {"stages": [3, 4]}
    wide = extract(tiny(), checkpoint, cache=tmp_path, backbone="tiny_resnet18", stages=[3, 4])
    results = _contest(features, checkpoint).runs(Contender("ncm"), [each])
    results += _contest(wide, checkpoint).runs(Contender("slda", deep), [each])
    table = arena_table(results)
    assert table.count("### ") == 1
    assert "| slda (stages=" in table
    assert "| ncm |" in table


def test_command_compares_and_refuses(checkpoint: Path, tmp_path: Path) -> None:
    base = [
        "compare",
        "ncm",
        "slda@covariance=fixed",
        "--backbone-from",
        str(checkpoint),
        "--backbone",
        "tiny_resnet18",
    ]
    base += [
        "--dataset",
        "tests.experiments.test_compare:tiny",
        "--out",
        str(tmp_path / "out"),
        "--cache",
        str(tmp_path / "cache"),
    ]
    done = CliRunner().invoke(app, [*base, "--partition", PARTITION, "--orders", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "joint linear probe" in done.stdout
    written = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert {row["method"] for row in written["rows"]} == {"ncm", "slda", "joint linear probe"}
    assert str(tmp_path) not in (tmp_path / "out" / "numbers.json").read_text()
    tested = CliRunner().invoke(app, [*base, "--partition", PARTITION, "--orders", "2", "--paired"])
    assert f"{PARTITION} ncm - slda@covariance=fixed: " in tested.stdout
    assert "points over 2 class orders, p = " in tested.stdout
    refused = CliRunner().invoke(app, [*base, "--partition", "40+20x3"])
    assert isinstance(refused.exception, WrongBaseError)
