"""Comparisons: stored features, orders on a given network, runs equal to those through images, tables."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from nocl.cli import app
from nocl.data import ImageSet
from nocl.experiments.compare import jobs_of, read_method
from nocl.experiments.grid import Engine, run_grid
from nocl.experiments.job import Job
from nocl.experiments.on_network import stream_on_network
from nocl.learner import FrozenLearner
from nocl.methods import METHODS, make
from nocl.nets import Backbone
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError, heads_on_features
from nocl.pretrain import heads as heads_module
from nocl.results import RunResult
from nocl.run import run
from nocl.streams import class_incremental
from tests.support.feature_nets import blobs
from tests.support.given_network import ORDER, PARTITION, method, tiny

BATCH_FREE = [
    name
    for name, cls in METHODS.items()
    if issubclass(cls, FrozenLearner) and not cls.depends_on_batching and not make(name).needs_heads()
]


def test_method_is_read_with_its_parameters(like: Job) -> None:
    def read(text: str) -> tuple[str, dict[str, JSON]]:
        job = read_method(text, replace(like, params={}))
        return job.method, job.chosen()

    assert read("ncm") == ("ncm", {})
    assert read("rda@preset=compact,rank=8") == ("rda", {"storage": "lowrank", "rank": 8})
    for wrong in ("rda@rnak=8", "rda@preset=compcat", "rdaa"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            read(wrong)
    wanted = {"stages": [1, 2], "activation": "sigmoid", "gamma": 1}
    assert read("acil@stages=[1,2],activation=sigmoid,gamma=1") == ("acil", wanted)
    with pytest.raises(ValueError, match="write key=value"):
        read("slda@fixed")


@pytest.mark.parametrize("name", BATCH_FREE)
def test_a_run_on_features_gives_the_result_of_a_run_through_images(name: str, like: Job, checkpoint: Path) -> None:
    job = method(like, name)
    learner = make(name, weights=str(checkpoint), **job.params)
    through_images = run(learner, class_incremental(tiny(), partition=PARTITION))
    result = job.run()
    assert result.class_accuracy == through_images.class_accuracy
    assert result.base["sha256"] == through_images.base["sha256"]
    assert result.state_bytes["statistics"] == through_images.state_bytes["statistics"]
    assert (result.method, result.stream["rows_at_once"]) == (name, 500)
    assert str(result.params["backbone"]).startswith("features:")


@pytest.mark.parametrize("name", BATCH_FREE)
def test_answers_do_not_depend_on_the_cut_into_batches(name: str, like: Job) -> None:
    job = method(replace(like, order_seed=1), name)
    stream = job.stream()
    scores = []
    for rows in (1, 10, 500):
        learner = job.learner(32)
        assert isinstance(learner, FrozenLearner)
        learner.fit_base(stream.base)
        cut = stream_on_network(stream.data, ORDER[:6], partition=PARTITION, order_seed=1, rows_at_once=rows)
        for session in cut:
            for z, y in session:
                learner.observe(z, y)
            learner.end_session()
        scores.append(learner.score(stream.data.test.take(range(40)).x)[:, learner.classes_.argsort()])
    for other in scores[1:]:
        assert (other - scores[0]).abs().max() < 1e-4 * scores[0].abs().max()  # float32


def test_a_run_on_features_goes_on_after_a_stop(like: Job, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(result: RunResult) -> None:
        if len(result.accuracy) == 2:
            raise Stop

    job = method(like, "slda")
    with pytest.raises(Stop):
        job.run(folder=tmp_path, on_session=stop)
    resumed = Job.load(tmp_path).run(folder=tmp_path)
    assert resumed.finished
    assert resumed.class_accuracy == job.run().class_accuracy


ONE_VIEW = {"objective": "ce", "head_epochs": 3}
HEADS = [("dsr", {"dim": 32, "iterations": 3, "samples": 5}), ("ncm", {"space": "hyper", "dim": 32})]


@pytest.mark.parametrize(("name", "params"), HEADS)
def test_heads_on_features_are_those_of_a_run_where_that_has_one_view_and_one_batch(
    name: str, params: dict[str, JSON], like: Job, checkpoint: Path
) -> None:
    params = {**like.params, **params, "recipe": ONE_VIEW}
    learner = make(name, weights=str(checkpoint), **params)
    through_images = run(learner, class_incremental(tiny(), partition=PARTITION, base_batch_size=6 * 24))
    result = replace(like, method=name, params=params).run()
    assert result.class_accuracy == through_images.class_accuracy
    assert result.log["base_loss"] == pytest.approx(through_images.log["base_loss"], rel=1e-4)
    assert result.state_bytes["statistics"] == through_images.state_bytes["statistics"]
    assert result.base["recipe"] == through_images.base["recipe"]
    assert "on features" in str(result.base["heads"])


def test_methods_that_differ_only_online_share_their_heads(
    like: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings: list[int] = []

    def counted(network: Backbone, z: Tensor, *rest: Any, **more: Any) -> Any:
        trainings.append(len(z))
        return heads_on_features(network, z, *rest, **more)

    monkeypatch.setattr(heads_module, "heads_on_features", counted)
    recipe: dict[str, JSON] = {"head_epochs": 2, "objective": "ce"}
    settings: list[dict[str, JSON]] = [
        {"iterations": 3, "recipe": recipe}, {"iterations": 0, "recipe": recipe},
        {"iterations": 3, "power": 0.7, "recipe": recipe}, {"iterations": 3, "recipe": recipe | {"head_epochs": 3}},
    ]  # fmt: skip
    shared, alone = [], []
    for params in settings:
        job = replace(like, method="dsr", params={**like.params, "dim": 16, "samples": 5, **params})
        shared.append(job.run(cache=tmp_path))
        alone.append(job.run())
    assert trainings[0] == 6 * 24
    assert len(trainings) == 3 + 4  # the first two share; another power or recipe trains anew
    assert [result.class_accuracy for result in shared] == [result.class_accuracy for result in alone]
    assert shared[0].log["upper_loss"] == alone[0].log["upper_loss"]
    assert shared[1].log["base_loss"] == alone[1].log["base_loss"]
    replace(like, method="dsr", order_seed=1, params={**like.params, "dim": 16, "samples": 5, **settings[0]}).run(
        cache=tmp_path
    )
    assert len(trainings) == 3 + 4  # another order shares them too


def test_heads_see_base_features_only_and_ignore_rounds(like: Job) -> None:
    features = like.stream().data
    novel = np.isin(features.train.labels, ORDER[6:])
    rows = np.array(features.train.images)
    rows[novel] = 1e6
    spoilt = replace(features, train=ImageSet(rows, features.train.labels, np.arange(len(rows))))
    weights = []
    for data, rounds in ((features, 1), (features, 5), (spoilt, 1)):
        params: dict[str, JSON] = {"dim": 32, "recipe": {**ONE_VIEW, "head_rounds": rounds}}
        learner = replace(like, method="dsr", params={**like.params, **params}).learner(32)
        learner.fit_base(stream_on_network(data, ORDER[:6], partition=PARTITION).base)
        weights.append(learner.state_dict()["projection.layer3.0.weight"])
    untrained = make("dsr", backbone="tiny_resnet18", dim=32).state_dict()["projection.layer3.0.weight"]
    assert not torch.equal(weights[0], untrained)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "params"), [("dsr", {"dim": 8, "recipe": {"objective": "sc+ssl"}}), ("rda", {"flip": True}), ("scr", {})]
)
def test_what_needs_images_runs_through_images_on_the_same_order(
    name: str, params: dict[str, JSON], like: Job, checkpoint: Path
) -> None:
    job = replace(like, method=name, params={**like.params, **params}, order_seed=2)
    assert not job.on_features()
    assert job.learner(32).weights == str(checkpoint)
    stream = job.stream()
    assert stream.blocks == replace(like, order_seed=2).stream().blocks
    assert stream.base.describe().get("features") is None
    with pytest.raises(WrongBaseError, match="would come again as novel"):
        replace(job, partition="40+20x3", allow_leak=True).stream()
    with pytest.raises(TypeError, match="needs more than the features of a given network"):
        read_method(name, replace(job, params=params | like.params))


def test_a_network_is_given_once_and_never_to_a_search(like: Job, checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="one file"):
        replace(like, params={"weights": str(checkpoint)})
    with pytest.raises(ValueError, match="tuning holds out"):
        replace(like, copy_partition="50+50x1")


def test_identity_is_what_the_network_holds_and_old_runs_are_found_again(
    like: Job, checkpoint: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(checkpoint.read_bytes())
    assert replace(like, network_from=str(moved), feature_cache=None).digest() == like.digest()
    moved.write_bytes(checkpoint.read_bytes() + b" ")
    assert replace(like, network_from=str(moved)).digest() != like.digest()
    assert Job("ncm").digest() == "d9d046e2af035822"


def test_command_compares_and_refuses(checkpoint: Path, tmp_path: Path) -> None:
    base = [
        "compare", "ncm", "slda@covariance=fixed", "--backbone-from", str(checkpoint), "--backbone", "tiny_resnet18",
        "--dataset", "tests.support.given_network:tiny", "--out", str(tmp_path / "out"),
        "--cache", str(tmp_path / "cache"), "--threads", "1",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*base, "--partition", PARTITION, "--orders", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "joint linear probe" in done.stdout
    written = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert {row["method"] for row in written["rows"]} == {"ncm", "slda", "joint linear probe"}
    assert str(tmp_path) not in (tmp_path / "out" / "numbers.json").read_text()
    tested = CliRunner().invoke(app, [*base, "--partition", PARTITION, "--orders", "2", "--paired"])
    assert tested.stderr.count(": found") == 4
    assert f"{PARTITION} ncm - slda@covariance=fixed: " in tested.stdout
    assert "points over 2 class orders; the order does not change it, so they are one observation" in tested.stdout
    refused = CliRunner().invoke(app, [*base, "--partition", "40+20x3"])
    assert isinstance(refused.exception, WrongBaseError)


def test_runs_are_those_of_the_grid_and_only_missing_ones_run_again(like: Job, tmp_path: Path) -> None:
    jobs = jobs_of(["ncm"], like, [PARTITION], 3)
    first = run_grid(jobs, tmp_path, engine=Engine(workers=1, threads=1))
    (first[1].folder / "result.json").unlink()
    second = run_grid(jobs, tmp_path, engine=Engine(workers=1, threads=1))
    assert [outcome.cached for outcome in second] == [True, False, True]
    accuracies = [[o.result and o.result.class_accuracy for o in outcomes] for outcomes in (first, second)]
    assert accuracies[0] == accuracies[1]
    assert accuracies[0] == [job.run().class_accuracy for job in jobs]


def vectors_file(path: Path, sign: float = 1.0, each: int = 20) -> Path:
    z, y = blobs(10, each, 6, spread=0.3)
    np.savez(path, X=(sign * z.abs()).numpy(), y=np.array([f"class {label}" for label in y.tolist()]))
    return path


def test_embeddings_are_compared_like_features_of_a_network(tmp_path: Path) -> None:
    file = vectors_file(tmp_path / "features.npz")
    arguments = ["compare", "ncm", "rda@prior=1", "--features", str(file), "--partition", PARTITION, "--orders", "2"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out"), "--workers", "1", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert "may overlap with these classes" in done.output
    rows = json.loads((tmp_path / "out" / "numbers.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["ncm", "rda", "joint linear probe"]
    assert min(min(row["acc"]) for row in rows) > 0.6
    assert rows[1]["params"]["backbone"] == "features:6"
    assert str(tmp_path) not in (tmp_path / "out" / "numbers.json").read_text()


def test_a_run_on_embeddings_is_known_by_what_the_file_holds(tmp_path: Path) -> None:
    def job(file: Path, name: str = "rda") -> Job:
        return Job(name, dataset="embeddings", options={"file": str(file)}, partition=PARTITION)

    file, copied = vectors_file(tmp_path / "a.npz"), vectors_file(tmp_path / "b.npz")
    assert job(file).digest() == job(copied).digest()
    assert job(file).digest() != job(vectors_file(copied, each=21)).digest()
    assert job(file).learner(1).get_params()["power"] == 0.5
    negative = job(vectors_file(copied, sign=-1))
    assert negative.learner(1).get_params()["power"] == 1  # no root of a negative number
    assert not negative.outdated(negative.run())
    result = job(file).run()
    assert result.acc > 0.6
    with pytest.raises(ValueError, match="SCR trains its network on images and cannot take features:6"):
        job(file, "scr").stream()
    with pytest.raises(TypeError, match="dsr as it is set needs images, not embeddings"):
        replace(job(file, "dsr"), params={"recipe": {"objective": "sc+ssl"}}).stream()
    with pytest.raises(ValueError, match="embeddings are features already"):
        replace(job(file), network_from="pretrained")


def test_compare_takes_one_source_of_features(tmp_path: Path) -> None:
    for more in ([], ["--features", "a.npz", "--backbone-from", "b"], ["--test-features", "a.npz"]):
        done = CliRunner().invoke(app, ["compare", "ncm", *more])
        assert isinstance(done.exception, ValueError)
        assert "give either a network" in str(done.exception)
