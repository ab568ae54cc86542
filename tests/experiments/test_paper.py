"""Experiments: the paper's numbers, the grids made of them, and tables that never guess."""

import csv
import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from nocl.cli import app
from nocl.data import MissingDataError
from nocl.experiments.grid import Engine, folder_of
from nocl.experiments.networks import kept_network
from nocl.experiments.on_network import class_order
from nocl.experiments.paper import values as paper
from nocl.experiments.paper.comparison import Line, Record, lines, place, records_of, table_of
from nocl.experiments.paper.figures import draw
from nocl.experiments.paper.reproduce import PLAN, kept_used, perform, rebuild, with_data, write_experiment
from nocl.experiments.paper.summary import BEGIN, END, Kept, committed, summary, write_summary
from nocl.experiments.paper.tables import EXPERIMENTS, Choice, Row, chosen_rows, find, plan, unusual
from nocl.experiments.report.paired import paired
from nocl.methods import make
from nocl.metrics import hm
from nocl.nets import build
from nocl.plumbing.files import write_json, write_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.results import RunResult
from nocl.run import run as run_protocol
from tests.support.made_results import result

NAMES = (
    "main-60-4-10", "partition-40-6-10", "partition-80-2-10", "partition-60-2-20", "base-strategies", "embedding-dim",
    "lambda", "iterations", "samples", "published-protocol", "overhead", "convergence",
)  # fmt: skip


@cache
def _usual() -> dict[str, Any]:
    return make("dsr").get_params()


def dsr(acc: float, order: int = 0, dataset: str = "cifar100", novel: float | None = None, **params: Any) -> RunResult:
    """A finished run of DSR with its usual parameters but for ``params``, all classes at ``acc`` unless told."""
    stream = {"dataset": dataset, "partition": "60+4x10", "order_seed": order}
    full = {**_usual(), "seed": order, **params}
    classes = ((order, order + 1), (order + 2,), (order + 3,))
    late = acc if novel is None else novel
    return result(acc, late, method="dsr", params=full, seed=order, stream=stream, base={}, session_classes=classes)


def test_printed_numbers_agree_with_each_other_except_known_misprints() -> None:
    found = {}
    for cell in paper.cells():
        if "+" not in cell.table:
            continue
        base, novel = cell.values["base"], cell.values["novel"]
        share = int(cell.table.partition("+")[0]) / 100
        implied = {"acc": share * base + (1 - share) * novel, "hm": hm(base, novel)}
        off = {name: value for name, value in implied.items() if abs(value - cell.values[name]) > 0.16}
        assert off.keys() == cell.misprints.keys(), cell
        for name, value in off.items():
            assert cell.misprints[name] == pytest.approx(value, abs=0.006)
        found |= {(cell.table, cell.row, cell.dataset, cell.memory): off} if off else {}
    assert len(found) == 7
    assert len(paper.cells()) == 165


def test_every_table_and_figure_has_a_grid() -> None:
    assert set(EXPERIMENTS) == set(NAMES)
    with pytest.raises(ValueError, match="did you mean 'lambda'"):
        find("lamda")


def test_what_is_usual_is_the_methods_own_value() -> None:
    learner = make("dsr")
    own = {name: value for name, value in learner.get_params().items() if value is not None and name != "recipe"}
    assert unusual(Row("all", "dsr", params=own)) == {}
    for name in ("base_samples", "novel_samples"):  # left open, they are `samples`
        assert unusual(Row(name, "dsr", params={name: learner.get_params()["samples"]})) == {}
        assert unusual(Row(name, "dsr", params={name: 7})) == {name: 7}
    objective = learner.full_recipe.objective
    assert unusual(Row("same", "dsr", params={"recipe": {"objective": objective}})) == {}
    assert unusual(Row("other", "dsr", params={"recipe": {"objective": "ce"}})) == {"recipe": {"objective": "ce"}}
    assert unusual(Row("preset", "scr", "ft", {"memory_size": 7})) == {"memory_size": 7}


def test_plan_starts_with_one_seed_of_everything_without_exemplars_first() -> None:
    runs = plan(find("main-60-4-10"), Choice(datasets=("cifar100",), methods=("scr", "dsr", "ncm"), seeds=(0, 1)))
    names = [(run.row.label, run.memory, run.job.seed) for run in runs]
    one = [("DSR", None), ("ncm", None), ("SCR", 1000), ("SCR", 2000)]
    assert names == [(*cell, seed) for seed in (0, 1) for cell in one]
    assert runs[2].job.params == {"memory_size": 1000}
    (frozen,) = plan(find("main-60-4-10"), Choice(datasets=("core50",), methods=("scr_ft",), memories=(500,)))
    assert (frozen.job.preset, frozen.job.params, frozen.job.partition) == ("ft", {"memory_size": 500}, "60+4x10")


def test_rows_that_are_the_plain_method_share_its_run() -> None:
    choice = Choice(datasets=("cifar100",))
    digests = []
    for name, label in (
        ("main-60-4-10", "DSR"), ("base-strategies", "SC"), ("embedding-dim", "2048"), ("lambda", "lambda = 0.5"),
        ("iterations", "T = 20"), ("samples", "K = 20"), ("samples", "K_base = 20"), ("convergence", "DSR"),
    ):  # fmt: skip
        digests += [run.job.digest() for run in plan(find(name), choice) if run.row.label == label]
    assert len(digests) == 8
    assert len(set(digests)) == 1
    other = [run.job for run in plan(find("base-strategies"), Choice(datasets=("cifar100",), epochs=7))]
    assert [job.params.get("recipe") for job in other[::2]] == [
        {"epochs": 7, "objective": "ce"}, {"epochs": 7},
        {"epochs": 7, "objective": "sc+ssl"}, {"epochs": 7, "objective": "sc+da"},
    ]  # fmt: skip
    assert [job.params.get("iterations") for job in other] == [None, 0] * 4  # each beside its control
    assert [job.params.get("recipe") for job in other[::2]] == [job.params.get("recipe") for job in other[1::2]]


def test_settings_for_all_rows_leave_each_row_what_it_is() -> None:
    settings: dict[str, JSON] = {"recipe": {"lr": 0.02}, "dim": 64}
    choice = Choice(datasets=("cifar100",), epochs=7, settings=settings)
    jobs = [run.job for run in plan(find("base-strategies"), choice)]
    assert [job.params["recipe"] for job in jobs[::2]] == [
        {"epochs": 7, "objective": "ce", "lr": 0.02}, {"epochs": 7, "lr": 0.02},
        {"epochs": 7, "objective": "sc+ssl", "lr": 0.02}, {"epochs": 7, "objective": "sc+da", "lr": 0.02},
    ]  # fmt: skip
    assert {job.params["dim"] for job in jobs} == {64}
    small = plan(find("base-strategies"), Choice(small=True, settings=settings))
    assert [run.job.learner(32).full_recipe.objective for run in small[::2]] == ["ce", "sc", "sc+ssl", "sc+da"]
    assert {run.job.learner(32).full_recipe.lr for run in small} == {0.02}
    with pytest.raises(ValueError, match="embedding-dim varies dim itself"):
        plan(find("embedding-dim"), choice)
    with pytest.raises(ValueError, match=r"base-strategies varies recipe\.objective itself"):
        plan(find("base-strategies"), Choice(settings={"recipe": {"objective": "ce"}}))


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="trains each of them"):
        plan(find("base-strategies"), Choice(network="network.safetensors"))
    with pytest.raises(ValueError, match="unknown row of overhead 'foo'"):
        chosen_rows(find("overhead"), ["foo"])


def test_small_scale_uses_embedded_data_and_every_row_has_its_own_value() -> None:
    runs = plan(find("embedding-dim"), Choice(small=True))
    assert {run.job.dataset for run in runs} == {"glyphs"}
    assert [run.job.params["dim"] for run in runs] == [dim for dim in (256, 1024, 2048, 3072) for _ in "ab"]
    assert [run.job.params["iterations"] for run in runs[1::2]] == [0] * 4
    assert {run.job.params["backbone"] for run in runs} == {"tiny_resnet18"}


def test_results_find_their_rows_by_parameters() -> None:
    usual, other = dsr(0.5), dsr(0.4, power=0.1)
    sc = find("base-strategies")
    given = dsr(0.5, weights="network.safetensors")
    assert [record.row.label for record in place(find("main-60-4-10"), [usual, other])] == ["DSR"]
    assert [record.row.label for record in place(find("lambda"), [usual, other])] == ["lambda = 0.5", "lambda = 0.1"]
    samples = place(find("samples"), [usual])
    assert [record.row.label for record in samples] == ["K = 20", "K_base = 20", "K_novel = 20"]
    assert [record.row.label for record in place(sc, [usual, dsr(0.3, recipe={"objective": "ce"})])] == ["SC", "CE"]
    assert place(sc, [given]) == []  # its network was not trained by that objective
    assert place(find("partition-40-6-10"), [usual]) == []
    assert place(find("main-60-4-10"), [dsr(0.5, dim=64), result(method="ncm")]) == []


def test_results_made_for_an_experiment_may_stray_in_what_its_rows_leave_open() -> None:
    experiment = find("lambda")
    cut = [dsr(0.4, power=0.1, dim=64), dsr(0.5, dim=64)]
    assert place(experiment, cut) == []
    records = place(experiment, [*cut, dsr(0.6, power=0.2, dim=64)], loosely=True)  # no row has a power of 0.2
    assert [record.row.label for record in records] == ["lambda = 0.1", "lambda = 0.5"]
    table = lines(experiment, [*records, *place(experiment, [dsr(0.7)]), *records])
    found = [(line.label, line.ours["acc"].mean, line.ours["acc"].seeds) for line in table if line.runs]
    assert found == [("lambda = 0.1, dim=64", 40, 1), ("lambda = 0.5, dim=64", 50, 1), ("lambda = 0.5", 70, 1)]
    (line,) = lines(find("convergence"), place(find("convergence"), cut[1:], loosely=True))[:1]
    assert (line.setting, line.verdict) == ("dim=64", "no paper value")
    params = {**make("scr").get_params(), "lr": 0.3}
    scr = result(0.5, 0.5, method="scr", params=params, stream=dsr(0.5).stream, base={})
    assert [r.row.label for r in place(find("main-60-4-10"), [scr], loosely=True)] == ["SCR"]  # not SCR_ft
    main = find("main-60-4-10")
    (line,) = ran(lines(main, place(main, [dsr(0.52, novel=0.43, dim=64)], loosely=True)))
    assert line.verdict == "reproduced; other setting"


def ran(table: list[Line]) -> list[Line]:
    return [line for line in table if line.runs]


def test_table_has_paper_and_ours_with_difference_and_verdict(tmp_path: Path) -> None:
    experiment = find("main-60-4-10")
    trained_here = [dsr(0.52, order=0, novel=0.42), dsr(0.54, order=1, novel=0.44)]
    records = place(experiment, [*trained_here, dsr(0.2, weights="/there/given.safetensors")])
    table = lines(experiment, records, chosen_rows(experiment, ["dsr", "alice"]))
    trained, given = ran(table)
    assert (trained.base, given.base) == ("sc, 100 epochs", "given.safetensors")
    assert trained.difference == pytest.approx(48.0 - 48.6)
    assert trained.ours["acc"].half == pytest.approx(12.7062 * 1.0)  # t(1) x std sqrt(2) / sqrt(2)
    assert trained.verdict == "reproduced"
    assert given.verdict == "below (Acc, base, novel, HM); other base network"
    text = table_of(experiment, table).markdown()
    assert "| DSR | cifar100 |  | sc, 100 epochs | 48.6 (52.4/42.9) \\| 47.2 | 48.0 ± 12.7 (53.0/43.0) \\| 47.5" in text
    assert "| -0.6 | 2 | reproduced |" in text
    assert "| -28.6 | 1 network | below" in text
    assert "| ALICE | cifar100 |  |  |  |  |  |  | not run |" in text  # empty, not guessed
    assert "| DSR | mini\\_imagenet |  |  | 50.7 (56.1/42.6) \\| 48.4 |  |  |  | not run |" in text
    files = {path.name: path for path in write_experiment(experiment, table, tmp_path)}
    written = list(csv.DictReader(io.StringIO(files["table.csv"].read_text())))
    by_row = {(record["row"], record["dataset"], record["base"]): record for record in written}
    ours = by_row["DSR", "cifar100", "sc, 100 epochs"]
    assert (float(ours["ours_acc"]), ours["paper_hm"], ours["runs"]) == (pytest.approx(48.0), "47.2", "2")
    assert by_row["ALICE", "cifar100", ""]["ours_acc"] == ""
    assert files["table.tex"].read_text().count(r" \\") == len(table) + 1
    assert "<td>DSR</td>" in files["table.html"].read_text()


def test_a_verdict_needs_every_accuracy() -> None:
    """Acc 47.6, base 60.6 and novel 34.6 beside 48.6 (52.4/42.9) 47.2: Acc alone would pass."""
    experiment = find("main-60-4-10")
    (line,) = ran(lines(experiment, place(experiment, [dsr(0.606, novel=0.346)])))
    assert line.difference == pytest.approx(-1.0)
    assert line.verdict == "differs (base, novel, HM)"
    (strategy,) = ran(lines(find("base-strategies"), place(find("base-strategies"), [dsr(0.5)])))
    assert strategy.cell is not None
    assert "hm" not in strategy.cell.values  # the table prints base and novel, which say it
    printed = strategy.cell.best("hm")
    assert printed == pytest.approx(hm(strategy.cell.values["base"], strategy.cell.values["novel"]))
    assert set(strategy.differences()) == {"acc", "base", "novel", "hm"}


def test_orders_on_one_network_pretend_no_interval() -> None:
    experiment = find("main-60-4-10")

    def on_features(acc: float, order: int, network: str) -> RunResult:
        values = dsr(acc, order).to_json()
        origin = {"weights": f"{network}.safetensors", "sha256": network, "stages": None}
        values |= {"seed": 0, "params": {**_usual(), "backbone": "features:160", "seed": 0}, "base": origin}
        return RunResult.from_json({**values, "stream": {**dsr(acc, order).stream, "features": origin}})

    (same,) = ran(lines(experiment, place(experiment, [on_features(0.5, order, "a") for order in (0, 1, 2)])))
    assert (records_of(experiment, [same])[0]["runs"], same.ours["acc"].half) == ("3 orders, 1 network", None)
    varied = [on_features(0.5 + order / 100, order, "a") for order in (0, 1, 2)]
    (line,) = ran(lines(experiment, place(experiment, varied)))
    assert line.ours["acc"].half == pytest.approx(4.3027 * 1.0 / 3**0.5, rel=1e-4)
    assert line.base == "a.safetensors"


def on_kept(order: int, epochs: int, acc: float, network: str = "", **stream: JSON) -> RunResult:
    """A run on stored features of a network that was trained on the first two of four classes in the seed's order."""
    values = dsr(acc, order).to_json()
    classes = class_order(4, order)
    name = network or str(order)
    origin: dict[str, JSON] = {"weights": f"cifar100-{name}.safetensors", "sha256": name, "stages": None}
    trained: JSON = {"objective": "ce", "epochs": epochs, "schedule": "onecycle"}
    values |= {"params": {**_usual(), "backbone": "features:160", "seed": order}, "base": origin}
    values |= {"session_classes": [classes[:2], classes[2:3], classes[3:]]}
    about = {**dsr(acc, order).stream, "features": {**origin, "trained": trained}, **stream}
    return RunResult.from_json({**values, "stream": about})


def test_networks_of_one_kind_are_averaged_over_class_orders() -> None:
    experiment = find("main-60-4-10")
    runs = [on_kept(0, 10, 0.5), on_kept(1, 14, 0.6)]
    (line,) = ran(lines(experiment, place(experiment, runs)))
    assert line.base == "ce, onecycle, one network a class order, 10 to 14 epochs"
    assert (line.ours["acc"].mean, records_of(experiment, [line])[0]["runs"]) == (pytest.approx(55), "2 networks")
    assert line.ours["acc"].half == pytest.approx(12.7062 * 5)
    other_order = replace_order(on_kept(0, 10, 0.5), 3)  # its base classes are those of seed 0, the order is not
    assert len(ran(lines(experiment, place(experiment, [*runs, other_order])))) == 2


def replace_order(run: RunResult, order: int) -> RunResult:
    return RunResult.from_json({**run.to_json(), "stream": {**run.stream, "order_seed": order}})


def test_the_published_codes_leak_stands_in_its_own_table_and_says_so() -> None:
    leaks = [on_kept(order, 10, 0.5, "0", foreign_order=True, novel_classes_in_network=20 + order) for order in (1, 2)]
    assert place(find("main-60-4-10"), leaks) == []
    own = find("published-protocol")
    (line,) = ran(lines(own, place(own, [*leaks, on_kept(0, 10, 0.5)])))
    assert "LEAK: one network for every class order, trained on 21 to 22 novel classes" in line.base
    assert (len(line.runs), line.verdict) == (2, "leak: no comparison")
    with pytest.raises(ValueError, match="name its file with --backbone-from"):
        plan(own, Choice())


def test_leaks_are_named_and_not_compared() -> None:
    experiment = find("main-60-4-10")
    leaked = dsr(0.9, weights="w.safetensors")
    leaked = RunResult.from_json({**leaked.to_json(), "stream": {**leaked.stream, "novel_classes_in_network": 20}})
    (line,) = [line for line in lines(experiment, place(experiment, [leaked])) if line.runs]
    assert (line.base, line.verdict) == (
        "w.safetensors, LEAK: trained on 20 novel classes", "leak: no comparison"
    )  # fmt: skip


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
    command = ["reproduce", "convergence", "--scale", "small", "--seeds", "1", "--out", str(tmp_path)]
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


def test_misprints_are_marked_and_replaced() -> None:
    experiment = find("partition-80-2-10")
    text = table_of(experiment, lines(experiment, [], chosen_rows(experiment, ["scr_ft"]))).markdown()
    assert "42.7\\* (45.2/32.8) \\| 38.0" in text
    assert "49.7 (53.7/33.7) \\| 41.4\\*" in text


def test_verdicts_above_and_inside_the_interval() -> None:
    experiment = find("main-60-4-10")
    (above,) = [line for line in lines(experiment, place(experiment, [dsr(0.6)])) if line.runs]
    assert above.verdict == "above (Acc, base, novel, HM)"
    wide = [dsr(0.40, order=0), dsr(0.48, order=1)]  # mean 44, half of the interval 50.8
    (inside,) = [line for line in lines(experiment, place(experiment, wide)) if line.runs]
    assert inside.verdict == "inside our interval"


def test_times_are_shown_and_not_judged() -> None:
    experiment = find("overhead")
    batches = {row.label: row.params.get("replay_batch") for row in experiment.rows if row.stores_exemplars}
    assert batches == {"SCR": 10, "DVC": None, "OCM": 10}
    assert make("dvc").get_params()["replay_batch"] == 10  # the appendix: 10 for every replay method
    (line,) = [line for line in lines(experiment, place(experiment, [dsr(0.5)])) if line.runs]
    assert line.ours["seconds"].mean == 3  # sessions of 1 and 2 s
    assert (line.difference, line.verdict) == (None, "other machine: compare the order")


def test_figures_are_the_same_bytes_again_and_say_when_nothing_was_run() -> None:
    for name in ("main-60-4-10", "embedding-dim", "convergence"):
        experiment = find(name)
        run = dsr(0.5)
        run = RunResult.from_json({**run.to_json(), "log": {"lower_loss": [3.0, 2.0], "upper_loss": [1.0, 0.5]}})
        table = lines(experiment, place(experiment, [run]))
        drawn = draw(experiment, table)
        assert drawn["svg"] == draw(experiment, table)["svg"]
        assert drawn["png"].startswith(b"\x89PNG")
    empty, full = (
        draw(find("lambda"), lines(find("lambda"), place(find("lambda"), some))) for some in ([], [dsr(0.5)])
    )
    assert empty["svg"] != full["svg"]
    assert b"<!-- lambda: not run -->" in empty["svg"]  # matplotlib draws text as paths and notes it in a comment


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


def test_summary_replaces_its_part_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "REPRODUCTION.md"
    page.write_text("# Reproduction\n\nBy hand.\n")
    write_summary([Kept(dsr(0.5), "somewhere")], page)
    page.write_text(page.read_text() + "\nAlso by hand.\n")
    write_summary([Kept(dsr(0.3), "somewhere"), Kept(dsr(0.2, dim=64, power=0.1), "lambda")], page)
    text = page.read_text()
    assert text.startswith("# Reproduction\n\nBy hand.\n")
    assert text.endswith("\nAlso by hand.\n")
    assert text.count(BEGIN) == text.count(END) == 1
    assert "30.0 (30.0/30.0)" in text
    assert "50.0 (50.0/50.0)" not in text
    assert text.count("20.0 (20.0/20.0)") == 1  # under lambda alone
    assert text.count("### Never run") == 1  # a list at the end
    assert "- on mini_imagenet: everything\n" in text
    assert "- base-strategies: CE, CE T=0, SC T=0, SC+SSL, SC+SSL T=0, SC+DA, SC+DA T=0\n" in text
    assert "- published-protocol: everything\n" in text
    assert summary([]).count(": everything") == len(EXPERIMENTS) + 3  # data sets
    page.write_text(text.replace(END, ""))
    with pytest.raises(ValueError, match="damaged"):
        write_summary([], page)


def test_paired_test_by_scipy_on_common_orders_only() -> None:
    first = [dsr(acc, order) for order, acc in enumerate((0.50, 0.52, 0.55, 0.9))]
    second = [dsr(acc, order) for order, acc in enumerate((0.48, 0.51, 0.50))]
    found = paired(first, [*second, dsr(0.4, 7)])
    differences = [0.02, 0.01, 0.05]
    assert found.orders == 3
    assert found.mean == pytest.approx(sum(differences) / 3)
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert found.p_wilcoxon is None
    assert paired(second, first).mean == pytest.approx(-found.mean)
    assert "p = " in found.sentence("a", "b")


def test_paired_test_without_spread_or_pairs() -> None:
    one = [dsr(0.5, 0), dsr(0.6, 1)]
    assert paired(one, one).p == 1.0
    assert paired(one[:1], one[:1]).p is None
    with pytest.raises(ValueError, match="no class order"):
        paired(one[:1], one[1:])
    repeated = paired([dsr(0.4, 0), dsr(0.6, 0), dsr(0.6, 1)], one)  # a repeated order is no further draw
    assert (repeated.orders, repeated.mean) == (2, pytest.approx(0.0))


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
    outcomes = perform(experiment, chosen_rows(experiment, choice.methods), runs, tmp_path, Engine(workers=2), None)
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


def test_committed_results_of_today_are_read_with_their_old_descriptions() -> None:
    kept = committed(Path(__file__).parents[2] / "benchmarks" / "results")
    assert len(kept) > 100
    text = summary(kept)
    assert "2 networks" in text  # an interval is over networks, not over orders on one
    assert "3 orders, 1 network" not in text
    assert "± 0.0" not in text
    assert "LEAK: trained on 20 novel classes" in text
