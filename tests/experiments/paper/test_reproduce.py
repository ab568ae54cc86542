"""Runs of an experiment: data that are missing, networks that are given, and tables from results alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nocl.cli import app
from nocl.data import MissingDataError
from nocl.experiments.grid import folder_of
from nocl.experiments.networks import kept_network
from nocl.experiments.on_network import class_order
from nocl.experiments.paper.comparison import Record, lines
from nocl.experiments.paper.reproduce import PLAN, kept_used, perform, rebuild, with_data
from nocl.experiments.paper.summary import committed
from nocl.experiments.paper.tables import Choice, chosen_rows, find, plan
from nocl.methods import make
from nocl.nets import build
from nocl.plumbing.files import write_json, write_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.run import run as run_protocol
from tests.support.grid_jobs import TWO
from tests.support.paper_cases import dsr, ran


def test_missing_data_sets_are_named_once(tmp_path: Path) -> None:
    runs = plan(find("overhead"), Choice(root=str(tmp_path)))
    with pytest.raises(MissingDataError, match="none of the data sets is here"):
        with_data(runs)
    some = plan(find("overhead"), Choice(root=str(tmp_path), datasets=("glyphs", "cifar100"), methods=("dsr",)))
    here, missing = with_data(some)
    assert {run.job.dataset for run in here} == {"glyphs"}
    assert list(missing) == ["cifar100"]
    answer = CliRunner().invoke(app, ["reproduce", "overhead", "--root", str(tmp_path)])
    assert isinstance(answer.exception, MissingDataError)


def test_command_runs_and_finds_its_runs_again(tmp_path: Path) -> None:
    command = ["reproduce", "convergence", "--scale", "small", "--seeds", "1", "--threads", "1", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, [*command, "--keep", str(tmp_path / "kept")])
    assert answer.exit_code == 0, answer.output
    assert "| glyphs |  | tiny\\_resnet18, sc, 1 epochs |" in answer.stdout
    assert "| DSR, dim=" in answer.stdout  # a trial's parameters are not the row's
    ((kept, folder),) = committed(tmp_path / "kept")
    assert folder == "convergence"
    assert kept.finished
    assert len(kept.log["lower_loss"]) == 3 * 10  # type: ignore[arg-type]  # three iterations in ten sessions
    assert CliRunner().invoke(app, command).stderr.count("found") == 1
    reported = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "report")])
    assert reported.exit_code == 0, reported.output
    assert str(tmp_path / "convergence" / "figure.svg") in reported.stdout


def test_table_is_rebuilt_from_results_alone(tmp_path: Path) -> None:
    experiment = find("convergence")
    dsr(0.31).save(tmp_path / "runs" / "one" / "result.json")
    entry: JSON = {"row": "DSR", "memory": None, "result": "runs/one/result.json"}
    plan_file = tmp_path / experiment.name / PLAN
    write_json(plan_file, {"experiment": experiment.name, "rows": ["DSR"], "runs": [entry]})
    written = rebuild(tmp_path / experiment.name)
    assert sorted(file.name for file in written) == [
        "figure.png", "figure.svg", "table.csv", "table.html", "table.md", "table.tex"
    ]  # fmt: skip
    assert "31.0 (31.0/31.0)" in (tmp_path / experiment.name / "table.md").read_text()
    before = [file.read_bytes() for file in written if file.suffix != ".png"]
    assert [file.read_bytes() for file in rebuild(tmp_path / experiment.name) if file.suffix != ".png"] == before


def kept(folder: Path, name: str, seed: int, epochs: int, base: int = 60) -> Path:
    """A file that says it was trained on the first classes of the seed's order; nobody runs it."""
    header: dict[str, JSON] = {"classes": list(class_order(100, seed)[:base]), "recipe": {"epochs": epochs}}
    write_tensors(folder / f"{name}.safetensors", {"x": torch.zeros(1)}, header)
    return folder / f"{name}.safetensors"


def test_kept_networks_are_found_by_their_classes(tmp_path: Path) -> None:
    kept(tmp_path, "cifar100-a", 0, 10)
    longer, other = kept(tmp_path, "cifar100-b", 0, 14), kept(tmp_path, "cifar100-c", 1, 10)
    forty = kept(tmp_path, "cifar100-d", 0, 10, base=40)
    kept(tmp_path, "core50-e", 2, 10)
    found = [kept_network(tmp_path, "cifar100", "60+4x10", seed) for seed in (0, 1, 2)]
    assert found == [longer, other, None]
    assert kept_network(tmp_path, "cifar100", "40+6x10", 0) == forty
    assert kept_network(tmp_path, "cifar100", "80+2x10", 0) is None
    assert kept_network(tmp_path, "glyphs", "60+4x10", 0) is None
    choice = Choice(datasets=("cifar100",), methods=("ncm", "dsr", "scr"), seeds=(0, 1, 2), networks=str(tmp_path))
    runs = plan(find("main-60-4-10"), choice)
    on = {(run.row.label, run.job.seed): run.job.network_from for run in runs}
    assert [on["ncm", seed] for seed in (0, 1, 2)] == [str(longer), str(other), None]
    assert on["DSR", 0] == str(longer)
    assert on["SCR", 0] is None  # it trains its network on
    assert {run.job.order_seed for run in runs} == {None}
    told = kept_used(runs)
    assert told[0] == f"seed 0: frozen methods begin from {longer}"
    assert told[-1].endswith("DSR, SCR, ncm")  # all train at seed 2
    trained = plan(find("main-60-4-10"), replace(choice, epochs=3))
    assert {run.job.network_from for run in trained} == {None}


def test_given_network_keeps_its_classes_for_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    network = tmp_path / "base.safetensors"
    choice = Choice(small=True, methods=("ncm", "dsr", "finetune"), seeds=(0, 1), network=str(network))
    stream = replace(plan(find("main-60-4-10"), choice)[0].job, network_from=None).stream()
    header: dict[str, JSON] = {"classes": list(stream.blocks[0])}
    write_tensors(network, build("tiny_resnet18", seed=3).state_dict(), header)
    with pytest.raises(WrongBaseError, match="would come again as novel"):
        with_data(plan(find("partition-40-6-10"), choice))
    leaking = plan(find("partition-40-6-10"), replace(choice, allow_leak=True))
    assert with_data(leaking) == (leaking, {})
    experiment = find("main-60-4-10")
    runs = plan(experiment, choice)
    names = [f"{name} glyphs order {order}" for order in (0, 1) for name in ("ncm", "DSR", "finetune")]
    assert [str(run) for run in runs] == names
    assert {run.job.seed for run in runs} == {0}
    outcomes = perform(experiment, chosen_rows(experiment, choice.methods), runs, tmp_path, TWO, None)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    found = {str(run): outcome.result for run, outcome in zip(runs, outcomes)}
    first, second, refined = (
        found[f"{name}"] for name in ("ncm glyphs order 0", "ncm glyphs order 1", "DSR glyphs order 0")
    )
    tuned = found["finetune glyphs order 1"]
    assert first is not None
    assert second is not None
    assert refined is not None
    assert tuned is not None
    (line,) = ran(lines(experiment, [Record(experiment.rows[-1], "glyphs", None, refined)]))
    assert line.base == "tiny_resnet18, base.safetensors, projection by sc, 1 epochs on features"
    params = {**first.params, "backbone": "tiny_resnet18", "weights": str(network)}
    assert first.accuracy == run_protocol(make("ncm", **params), stream).accuracy  # features or images, the same
    assert second.session_classes[0] == first.session_classes[0]
    assert second.session_classes[1:] != first.session_classes[1:]
    assert tuned.session_classes == second.session_classes  # through images, in the same order
    assert tuned.base["weights"] == "base.safetensors"


def test_dry_run_tells_at_once_what_is_there_and_how_long_such_runs_took(tmp_path: Path) -> None:
    command = ["reproduce", "lambda", "--scale", "small", "--seeds", "1", "--dry-run", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, [*command, "--methods", "lambda = 0.5"])
    assert answer.exit_code == 0, answer.output
    assert "1 runs: 0 finished, 1 to run" in answer.output
    job = plan(find("lambda"), Choice(small=True, methods=("lambda = 0.5",)))[0].job
    dsr(0.5, dataset="glyphs").save(folder_of(job, tmp_path) / "result.json")  # took 12 s, its tests 0.1 s each
    answer = CliRunner().invoke(app, [*command, "--methods", "lambda = 0.5,lambda = 0.3"])
    assert "2 runs: 1 finished, 1 to run" in answer.output
    assert "to run, last 12.3 s" in answer.output
    elsewhere = ["reproduce", "main-60-4-10", "--dry-run", "--root", str(tmp_path), "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, elsewhere)  # without any of the data
    assert answer.exit_code == 0, answer.output
    assert "SCR 2000 cifar100 seed 2" in answer.output
