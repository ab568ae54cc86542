"""`nocl reproduce streams`: planned and run like every experiment, on the features of one network."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocl import data
from nocl.experiments.base_shared import SHARED
from nocl.experiments.grid import Engine
from nocl.experiments.job import Job
from nocl.experiments.paper.reproduce import foreseen, keep, perform, rebuild
from nocl.experiments.paper.tables import BEYOND, Choice, Experiment, Planned, Row, chosen_rows, find, plan
from nocl.experiments.streams import Run, tables
from nocl.nets import build
from nocl.plumbing.files import write_tensors
from nocl.plumbing.registry import UnknownNameError
from nocl.pretrain import WrongBaseError
from nocl.streams import rebuild as rebuild_stream
from tests.support.made_results import result

OPTIONS: dict[str, Any] = {"n_classes": 20, "train_per_class": 5, "test_per_class": 2}
LINE = Engine(workers=1, threads=1)


def network(folder: Path, classes: list[int] | None = None) -> str:
    path = folder / "network.safetensors"
    about: dict[str, Any] = {} if classes is None else {"classes": classes}
    write_tensors(path, dict(build("reduced_resnet18").state_dict()), about)
    return str(path)


def few(folder: Path, methods: tuple[str, ...], streams: tuple[str, ...], seeds: tuple[int, ...]) -> list[Planned]:
    """Runs of the experiment on small data."""
    choice = Choice(
        ("glyphs",), methods, seeds, network=network(folder), streams=streams, test_every=10, feature_cache=str(folder)
    )
    return [Planned(row, replace(job, options=OPTIONS)) for row, job in plan(find("streams"), choice)]


def test_the_experiments_have_the_methods_and_streams_they_promise() -> None:
    wanted = {"ncm", "slda", "fecam", "ranpac", "acil", "foal", "gacl", "rda", "dsr", "head", "er"}
    assert {row.label for row in find("streams").rows} == wanted | {"scr"}
    assert {row.label for row in find("streams-pretrained").rows} == wanted
    runs = plan(find("streams"), Choice(seeds=(0, 1, 2)))
    assert len(runs) == 11 * 7 * 3 + 1  # scr trains the network: one run
    assert {run.job.test_every for run in runs} == {2000}
    (foal,) = plan(find("streams"), Choice(methods=("foal",), streams=("ordered",)))
    assert (foal.job.method, foal.job.preset, foal.job.arrivals) == ("acil", "foal", "ordered")
    seen = plan(find("streams-pretrained"), Choice())
    assert all(run.job.network_from == "pretrained" for run in seen)
    assert {(run.job.arrivals == "long_tailed", run.job.test_every) for run in seen} == {(True, 1000), (False, 5000)}


def test_wrong_streams_are_one_clear_error() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'blurry'"):
        plan(find("streams"), Choice(streams=("blury",)))
    with pytest.raises(ValueError, match="leave --streams out"):
        plan(find("lambda"), Choice(streams=("blurry",)))


def test_runs_are_done_once_end_alike_and_are_written(tmp_path: Path) -> None:
    streams = ("blurry", "ordered")
    runs, out = few(tmp_path, ("ncm", "foal"), streams, (0, 1)), tmp_path / "out"
    rows = chosen_rows(find("streams"), ("ncm", "foal"))
    assert foreseen(runs, out)[-1] == "8 runs: 0 finished, 8 to run"
    outcomes = perform(find("streams"), rows, runs, out, LINE, None)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    assert foreseen(runs, out)[-1] == "8 runs: 8 finished, 0 to run"
    written = rebuild(out / "streams")
    keep(find("streams"), outcomes, written, tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "runs.json").read_text())
    assert len(kept) == 8
    for label in ("ncm", "foal"):
        for seed in (0, 1):
            assert len({run["a_last"] for run in kept if (run["row"], run["seed"]) == (label, seed)}) == 1
    assert all(run["images"] == [10, 20, 30, 40] for run in kept)  # tests come at exactly these images
    assert {run["about"]["rows_at_once"] for run in kept} == {500}
    lines = list(csv.DictReader((out / "streams" / "table.csv").open()))
    assert {line["runs"] for line in lines if line["stream"] in streams} == {"2"}
    assert {line["runs"] for line in lines if line["stream"] not in streams} == {"0"}
    assert "| disjoint | – | – |" in (out / "streams" / "table.md").read_text().splitlines()
    again = perform(find("streams"), rows, runs, out, LINE, None)
    assert all(outcome.cached for outcome in again)


def test_a_stream_on_features_hands_over_what_the_same_stream_of_images_does(tmp_path: Path) -> None:
    common: dict[str, Any] = {"dataset": "glyphs", "options": OPTIONS, "arrivals": "si_blurry:sessions=3", "seed": 3}
    given = {"network_from": network(tmp_path), "feature_cache": str(tmp_path)}
    on_features = Job("slda", **common, **given).stream()
    on_images = Job("finetune", **common, **given).stream()  # trains the network
    images = data.load("glyphs", **OPTIONS)
    assert on_features.describe()["features"] is not None
    assert "features" not in on_images.describe()
    for stream in (on_images, rebuild_stream(images, on_features.describe())):
        assert stream.blocks == on_features.blocks
        assert [session.n_images for session in stream] == [session.n_images for session in on_features]
    first = [int(label) for session in on_features for _, y in session for label in y]
    assert [int(label) for session in on_images for _, y in session for label in y] == first


@pytest.mark.parametrize("method", ["slda", "dsr"])
def test_runs_that_share_their_base_session_end_as_those_that_do_not(method: str, tmp_path: Path) -> None:
    params: dict[str, Any] = {"dsr": {"dim": 16, "iterations": 2, "refine_every": 10}}.get(method, {})
    job = Job(
        method, params, dataset="glyphs", options=OPTIONS, arrivals="blurry", network_from=network(tmp_path),
        feature_cache=str(tmp_path), test_every=10,
    )  # fmt: skip
    alone = job.run()
    first, second = job.run(cache=tmp_path / "cache"), job.run(cache=tmp_path / "cache")
    assert alone.class_accuracy == first.class_accuracy == second.class_accuracy
    assert alone.anytime == first.anytime == second.anytime
    assert alone.log == second.log
    assert (SHARED in first.base, SHARED in second.base) == (False, True)
    assert len(list((tmp_path / "cache").glob("learned-*.safetensors"))) == 1


def test_a_network_that_has_seen_later_classes_is_refused(tmp_path: Path) -> None:
    leaky = network(tmp_path, list(range(20)))
    job = Job("ncm", dataset="glyphs", options=OPTIONS, arrivals="blurry", network_from=leaky)
    with pytest.raises(WrongBaseError, match="8 of them would come again as novel"):
        job.check_order()


def test_base_classes_are_the_networks_own(tmp_path: Path) -> None:
    own = [19, 3, 5, 7, 11, 13, 17, 2, 4, 6, 8, 10]
    job = Job(
        "ncm", dataset="glyphs", options=OPTIONS, arrivals="ordered", network_from=network(tmp_path, own),
        feature_cache=str(tmp_path), seed=4,
    )  # fmt: skip
    stream = job.stream()
    assert stream.base.classes == tuple(own)
    assert rebuild_stream(data.load("glyphs", **OPTIONS), stream.describe()).blocks == stream.blocks


def test_table_has_means_and_intervals_over_seeds() -> None:
    row = Row("ncm", "ncm")
    experiment: Experiment = replace(BEYOND["streams"], streams=("shuffled", "ordered"))
    streams = [{"dataset": "cifar100", "partition": "shuffled:base=60", "seed": seed} for seed in range(3)]
    runs = [Run(row, result(0.4 + s / 10, 0.4 + s / 10, seed=s, stream=streams[s])) for s in range(3)]
    body = {table.title.partition(":")[0]: table.body for table in tables(experiment, [row], runs)}
    assert body["Mean class accuracy after the last image"] == [
        ["shuffled", "50.0 ± 24.8"],
        ["ordered", "–"],
    ]  # 4.3027 x 0.1 / sqrt(3)
