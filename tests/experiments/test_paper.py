"""Experiments: the paper's numbers, the grids made of them, and tables that never guess."""

import csv
import io
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from nocl.cli import app
from nocl.data import MissingDataError
from nocl.experiments.given import run_arena, split
from nocl.experiments.grid import Event, base_of, estimate, folder_of
from nocl.experiments.grid.estimate import cost, seconds_on_features, total_seconds
from nocl.experiments.job import Job
from nocl.experiments.paper import values as paper
from nocl.experiments.paper.comparison import Record, lines, place, to_csv, to_html, to_latex, to_markdown
from nocl.experiments.paper.figures import draw
from nocl.experiments.paper.reproduce import BEGIN, END, Kept, committed, rebuild, save_plan, summary, write_summary
from nocl.experiments.paper.tables import EXPERIMENTS, USUAL, Choice, chosen_rows, describe, find, plan
from nocl.methods import make
from nocl.metrics import hm
from nocl.nets import build
from nocl.plumbing.files import write_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.report.paired import paired
from nocl.results import RunResult
from nocl.run import run
from tests.report.test_report import result

NAMES = (
    "main-60-4-10", "partition-40-6-10", "partition-80-2-10", "partition-60-2-20", "base-strategies", "embedding-dim",
    "lambda", "iterations", "samples", "overhead", "convergence",
)  # fmt: skip


@cache
def _usual() -> dict[str, Any]:
    return make("dsr").get_params()


def dsr(acc: float, order: int = 0, dataset: str = "cifar100", **params: Any) -> RunResult:
    """A finished run of DSR with its usual parameters but for ``params``, all classes at ``acc``."""
    stream = {"dataset": dataset, "partition": "60+4x10", "order_seed": order}
    full = {**_usual(), "seed": order, **params}
    classes = ((order, order + 1), (order + 2,), (order + 3,))
    return result(acc, acc, method="dsr", params=full, seed=order, stream=stream, base={}, session_classes=classes)


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


def test_usual_values_are_dsrs_own() -> None:
    learner = make("dsr")
    params = learner.get_params()
    for name, value in USUAL.items():
        if name == "recipe":
            assert value == {"objective": learner.full_recipe.objective}
        else:
            assert params[name] in (value, None)
    assert params["base_samples"] is params["novel_samples"] is None


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
    assert [job.params.get("recipe") for job in other] == [
        {"epochs": 7, "objective": "ce"}, {"epochs": 7},
        {"epochs": 7, "objective": "sc+ssl"}, {"epochs": 7, "objective": "sc+da"},
    ]  # fmt: skip


def test_settings_for_all_rows_leave_each_row_what_it_is() -> None:
    settings: dict[str, JSON] = {"recipe": {"lr": 0.02}, "dim": 64}
    choice = Choice(datasets=("cifar100",), epochs=7, settings=settings)
    jobs = [run.job for run in plan(find("base-strategies"), choice)]
    assert [job.params["recipe"] for job in jobs] == [
        {"epochs": 7, "objective": "ce", "lr": 0.02}, {"epochs": 7, "lr": 0.02},
        {"epochs": 7, "objective": "sc+ssl", "lr": 0.02}, {"epochs": 7, "objective": "sc+da", "lr": 0.02},
    ]  # fmt: skip
    assert {job.params["dim"] for job in jobs} == {64}
    small = plan(find("base-strategies"), Choice(small=True, settings=settings))
    assert [run.job.learner(32).full_recipe.objective for run in small] == ["ce", "sc", "sc+ssl", "sc+da"]
    assert {run.job.learner(32).full_recipe.lr for run in small} == {0.02}
    with pytest.raises(ValueError, match="embedding-dim varies dim itself"):
        plan(find("embedding-dim"), choice)
    with pytest.raises(ValueError, match=r"base-strategies varies recipe\.objective itself"):
        plan(find("base-strategies"), Choice(settings={"recipe": {"objective": "ce"}}))


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="trains each of them"):
        plan(find("base-strategies"), Choice(weights="network.safetensors"))
    with pytest.raises(ValueError, match="unknown row of overhead 'foo'"):
        chosen_rows(find("overhead"), ["foo"])


def test_small_scale_uses_embedded_data_and_every_row_has_its_own_value() -> None:
    runs = plan(find("embedding-dim"), Choice(small=True))
    assert {run.job.dataset for run in runs} == {"glyphs"}
    assert [run.job.params["dim"] for run in runs] == [256, 1024, 2048, 3072]
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
    (line,) = [line for line in lines(main, place(main, [dsr(0.48, dim=64)], loosely=True)) if line.runs]
    assert line.verdict == "reproduced; other setting"


def test_table_has_paper_and_ours_with_difference_and_verdict() -> None:
    experiment = find("main-60-4-10")
    records = place(experiment, [dsr(0.47, order=0), dsr(0.49, order=1), dsr(0.2, weights="/there/given.safetensors")])
    table = lines(experiment, records, chosen_rows(experiment, ["dsr", "alice"]))
    ran = [line for line in table if line.runs]
    trained, given = ran
    assert (trained.base, given.base) == ("sc, 100 epochs", "given.safetensors")
    assert trained.seeds == 2
    assert trained.difference == pytest.approx(48.0 - 48.6)
    assert trained.ours["acc"].half == pytest.approx(12.7062 * 1.0)  # t(1) x std sqrt(2) / sqrt(2)
    assert (trained.verdict, given.verdict) == ("reproduced", "below; other base network")
    text = to_markdown(experiment, table)
    assert "| DSR | cifar100 |  | sc, 100 epochs | 48.6 (52.4/42.9) \\| 47.2 | 48.0 ± 12.7 (48.0/48.0) \\| 48.0" in text
    assert "| ALICE | cifar100 |  |  |  |  |  |  | not run |" in text  # empty, not guessed
    assert "| DSR | mini\\_imagenet |  |  | 50.7 (56.1/42.6) \\| 48.4 |  |  |  | not run |" in text
    records = list(csv.DictReader(io.StringIO(to_csv(experiment, table))))
    by_row = {(record["row"], record["dataset"], record["base"]): record for record in records}
    ours = by_row["DSR", "cifar100", "sc, 100 epochs"]
    assert (float(ours["ours_acc"]), ours["paper_hm"], ours["seeds"]) == (pytest.approx(48.0), "47.2", "2")
    assert by_row["ALICE", "cifar100", ""]["ours_acc"] == ""
    assert to_latex(experiment, table).count(r" \\") == len(table) + 1
    assert "<td>DSR</td>" in to_html(experiment, table)


def test_leaks_are_named_and_not_compared() -> None:
    experiment = find("main-60-4-10")
    leaked = dsr(0.9, weights="w.safetensors")
    leaked = RunResult.from_json({**leaked.to_json(), "stream": {**leaked.stream, "novel_classes_in_network": 20}})
    (line,) = [line for line in lines(experiment, place(experiment, [leaked])) if line.runs]
    assert (line.base, line.verdict) == (
        "w.safetensors, LEAK: trained on 20 novel classes", "leak: no comparison"
    )  # fmt: skip


def test_missing_data_sets_are_named_once(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["reproduce", "overhead", "--root", str(tmp_path), "--dry-run"])
    assert isinstance(answer.exception, MissingDataError)
    assert answer.stderr.count("is left out") == 2  # two data sets, many runs


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
    text = to_markdown(experiment, lines(experiment, [], chosen_rows(experiment, ["scr_ft"])))
    assert "42.7\\* (45.2/32.8) \\| 38.0" in text
    assert "49.7 (53.7/33.7) \\| 41.4\\*" in text


def test_verdicts_above_and_inside_the_interval() -> None:
    experiment = find("main-60-4-10")
    (above,) = [line for line in lines(experiment, place(experiment, [dsr(0.6)])) if line.runs]
    assert above.verdict == "above"
    wide = [dsr(0.40, order=0), dsr(0.48, order=1)]  # mean 44, half of the interval 50.8
    (inside,) = [line for line in lines(experiment, place(experiment, wide)) if line.runs]
    assert inside.verdict == "inside our interval"


def test_times_are_shown_and_not_judged() -> None:
    experiment = find("overhead")
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
    path = tmp_path / "runs" / "one" / "result.json"
    dsr(0.31).save(path)
    save_plan(experiment, experiment.rows, [(experiment.rows[0], None, path)], tmp_path / experiment.name)
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
    assert "Not run: on cifar100 CE, SC+SSL, SC+DA; on mini_imagenet everything." in text
    assert summary([]).count("Not run.") == len(EXPERIMENTS)
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


def test_given_network_serves_frozen_methods_through_the_arena(tmp_path: Path) -> None:
    network = build("tiny_resnet18", seed=3)
    choice = Choice(
        small=True, methods=("ncm", "dsr", "finetune"), seeds=(0, 1), weights=str(tmp_path / "base.safetensors")
    )
    stream = plan(find("main-60-4-10"), choice)[0].job.stream()
    write_tensors(tmp_path / "base.safetensors", network.state_dict(), {"classes": list(stream.blocks[0])})
    with pytest.raises(WrongBaseError, match="would come again as novel"):
        split(plan(find("partition-40-6-10"), choice), tmp_path / "base.safetensors")
    given = split(plan(find("main-60-4-10"), choice), tmp_path / "base.safetensors")
    places = {name: [describe(run) for run in getattr(given, name)] for name in ("arena", "grid", "left_out")}
    assert places == {
        "arena": [f"{name} glyphs seed {seed}" for seed in (0, 1) for name in ("ncm", "DSR")],
        "grid": ["finetune glyphs seed 0"],
        "left_out": ["finetune glyphs seed 1"],  # its base classes are others
    }
    leaking = split(plan(find("partition-40-6-10"), choice), tmp_path / "base.safetensors", allow_leak=True)
    assert len(leaking.arena) == 4
    assert leaking.grid == []
    said: list[Event] = []
    outcomes = run_arena(given.arena, tmp_path / "base.safetensors", tmp_path, tmp_path / "features", said.append)
    first, refined, second, _ = (outcome.result for outcome in outcomes)
    assert refined is not None
    assert first is not None
    assert second is not None
    assert refined.params["recipe"] == {"epochs": 1, "head_epochs": 1, "compile": False}
    (line,) = [
        line
        for line in lines(find("main-60-4-10"), [Record(find("main-60-4-10").rows[-1], "glyphs", None, refined)])
        if line.runs
    ]
    assert line.base == "tiny_resnet18, base.safetensors, projection by sc, 1 epochs on features"
    assert first.params["recipe"] == {}  # nothing of it is used
    whole = run(given.arena[0].job.learner(stream.image_size), stream)
    assert first.accuracy == whole.accuracy  # features or images, the same answers
    assert second.session_classes[0] == first.session_classes[0]
    assert second.session_classes[1:] != first.session_classes[1:]
    assert [event.number for event in said if event.kind == "done"] == [0, 2, 1, 3]
    said.clear()
    again = run_arena(given.arena, tmp_path / "base.safetensors", tmp_path, tmp_path / "features", said.append)
    assert [event.kind for event in said] == ["cached"] * 4
    assert [outcome.result for outcome in again] == [outcome.result for outcome in outcomes]


def test_dry_run_tells_what_is_there_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    command = ["reproduce", "lambda", "--scale", "small", "--seeds", "1", "--methods", "lambda = 0.5", "--dry-run"]
    answer = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert "to run" in answer.output
    assert "1 runs: 0 finished, 1 to run; 1 base networks to train; roughly" in answer.output
    job = plan(find("lambda"), Choice(small=True, methods=("lambda = 0.5",)))[0].job
    dsr(0.5, dataset="glyphs").save(folder_of(job, tmp_path) / "result.json")
    answer = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert "1 runs: 1 finished, 0 to run; 0 base networks to train; roughly 0.000 s" in answer.output


def test_cost_counts_shared_networks_once_and_believes_finished_runs() -> None:
    jobs = [run.job for run in plan(find("lambda"), Choice(small=True, methods=("lambda = 0.5", "lambda = 0.3")))]
    costs = [cost(job, []) for job in jobs]
    assert base_of(jobs[0]) != base_of(jobs[1])  # the power is applied in base training too
    assert total_seconds(jobs, [], set(), 1) == pytest.approx(sum(each.base + each.rest for each in costs))
    assert total_seconds([jobs[0]] * 2, [], set(), 1) == pytest.approx(costs[0].base + 2 * costs[0].rest)
    assert total_seconds(jobs, [], {base_of(job) for job in jobs}, 2) == pytest.approx(sum(c.rest for c in costs) / 2)
    known = cost(jobs[0], [dsr(0.5, dataset="glyphs")])  # its sessions took 1 and 2 s, its tests 0.1 s each
    assert (known.rest, known.from_results) == (pytest.approx(3.3), True)


def test_cost_on_features_adds_up_what_each_part_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(estimate, "perf_counter", lambda: next(clock))  # every part takes a second
    small: dict[str, JSON] = {"n_classes": 20, "train_per_class": 8, "test_per_class": 2}
    job = Job("dsr", {"dim": 16, "backbone": "tiny_resnet18"}, dataset="glyphs", options=small, partition="60+10x4")
    found = seconds_on_features(job, [])
    learned = 8 * 8 / 40  # 8 novel classes of 8 images, tried on 40 rows of noise
    tested = (12 + 14 + 16 + 18 + 20) * 2 / 40
    assert (found.base, found.from_results) == (1, False)  # as long for more rows: it is paid once
    assert found.rest == pytest.approx(learned + 4 + tested)  # four ends of sessions, whatever their images
    known = seconds_on_features(job, [dsr(0.5, dataset="glyphs")])
    assert (known.rest, known.from_results) == (pytest.approx(3.3), True)
    with pytest.raises(TypeError, match="does not run on features"):
        seconds_on_features(Job("scr", dataset="glyphs", options=small), [])
