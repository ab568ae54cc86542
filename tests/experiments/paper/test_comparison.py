"""Tables and figures: the paper's values and ours, differences and verdicts."""

import csv
import io
from pathlib import Path

import pytest

from nocl.experiments.on_network import class_order
from nocl.experiments.paper.comparison import lines, place, records_of, table_of
from nocl.experiments.paper.figures import draw
from nocl.experiments.paper.reproduce import write_experiment
from nocl.experiments.paper.tables import Choice, chosen_rows, find, plan
from nocl.methods import make
from nocl.metrics import hm
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from tests.support.made_results import result
from tests.support.paper_cases import _usual, dsr, ran


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
    control = place(find("main-60-4-10"), [dsr(0.4, iterations=0, dim=64)], loosely=True)
    assert [record.row.label for record in control] == ["DSR T=0"]  # and not DSR with T = 0
    (line,) = lines(find("convergence"), place(find("convergence"), cut[1:], loosely=True))[:1]
    assert (line.setting, line.verdict) == ("dim=64", "no paper value")
    params = {**make("scr").get_params(), "lr": 0.3}
    scr = result(0.5, 0.5, method="scr", params=params, stream=dsr(0.5).stream, base={})
    assert [r.row.label for r in place(find("main-60-4-10"), [scr], loosely=True)] == ["SCR"]  # not SCR_ft
    main = find("main-60-4-10")
    (line,) = ran(lines(main, place(main, [dsr(0.52, novel=0.43, dim=64)], loosely=True)))
    assert line.verdict == "reproduced; other setting"


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
    runs = [on_kept(0, 14, 0.5), on_kept(1, 14, 0.6)]
    (line,) = ran(lines(experiment, place(experiment, runs)))
    assert line.base == "ce, onecycle, one network a class order, 14 epochs"
    assert (line.ours["acc"].mean, records_of(experiment, [line])[0]["runs"]) == (pytest.approx(55), "2 networks")
    assert line.ours["acc"].half == pytest.approx(12.7062 * 5)
    other_order = replace_order(on_kept(0, 14, 0.5), 3)  # its base classes are those of seed 0, the order is not
    assert len(ran(lines(experiment, place(experiment, [*runs, other_order])))) == 2


def test_networks_trained_for_longer_have_a_line_of_their_own() -> None:
    """Two of one class order above all: their difference is no interval over class orders."""
    experiment = find("main-60-4-10")
    runs = [on_kept(0, 18, 0.5), on_kept(1, 18, 0.6), on_kept(1, 30, 0.7, "longer")]
    short, long = ran(lines(experiment, place(experiment, runs)))
    assert (short.ours["acc"].mean, long.ours["acc"].mean) == (pytest.approx(55), pytest.approx(70))
    assert long.base == "ce, onecycle, one network a class order, 30 epochs"
    assert long.ours["acc"].half is None


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
