"""An experiment's table: the paper's value and ours, the difference, the seeds and a verdict.

A line is one row of the paper's table on one data set with one memory size, one kind of base network and one setting:
results after different base training, or with other parameters than the row's, are never averaged with the rest and say
what is different. A cell that was never run is empty.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from nocl.experiments.job import Job
from nocl.experiments.on_network import class_order
from nocl.experiments.paper import values as paper
from nocl.experiments.paper.tables import Experiment, Row, effective
from nocl.experiments.report.summary import FOREIGN, LEAK, UNTRAINED, Estimate, draws, over_seeds, text
from nocl.experiments.report.tables import Table
from nocl.methods import METHODS
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe
from nocl.results import RunResult

POINTS = 2.0  # differences up to this many points, in every accuracy of a row, count as reproduced
NOT_COMPARED = frozenset({"seed", "weights", "image_size", "backbone", "recipe", "memory_size"})
ACCURACIES = ("acc", "base", "novel", "hm")
HEADER = ("Method", "Data set", "Memory", "Base network", "Paper", "Ours", "Difference", "Runs", "Verdict")
NOTE = (
    "Acc (base/novel) | HM in percent; ± is half the 95 % interval over seeds, or over class orders on a given "
    f"network. Difference: in Acc. Reproduced: Acc, base, novel and HM are all within {POINTS:g} points of the "
    "paper's; else the verdict names those that are not. * a misprint in the paper, replaced by what its other numbers "
    "imply. Empty: never run, or not in the paper."
)
_READ: dict[str, Callable[[RunResult], float | None]] = {
    "acc": lambda run: 100 * run.acc,
    "base": lambda run: _percent(run.base_acc),
    "novel": lambda run: _percent(run.novel_acc),
    "hm": lambda run: _percent(run.hm),
    "seconds": lambda run: math.fsum(run.seconds[1:]),
    "gigabytes": lambda run: None if run.peak_memory is None else run.peak_memory / 1e9,
}


class Record(NamedTuple):
    """A result with its place in the table."""

    row: Row
    dataset: str
    memory: int | None
    result: RunResult


@dataclass(frozen=True)
class Line:
    """One line of the table; ``runs`` is empty where nothing was run."""

    row: Row
    dataset: str
    memory: int | None
    base: str
    setting: str  # parameters that are not the row's; empty: all are
    usual_base: bool
    cell: paper.Cell | None
    runs: tuple[RunResult, ...]
    ours: dict[str, Estimate]

    @property
    def label(self) -> str:
        """The row's name, with the parameters in which these runs stray from it."""
        return self.row.label + (f", {self.setting}" if self.setting else "")

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's Acc, in points."""
        return self.differences().get("acc")

    def differences(self) -> dict[str, float]:
        """Ours minus the paper's, in points, for every accuracy that both have."""
        found = {}
        for metric in ACCURACIES:
            printed = None if self.cell is None else self.cell.best(metric)
            if printed is not None and metric in self.ours:
                found[metric] = self.ours[metric].mean - printed
        return found

    @property
    def verdict(self) -> str:
        """What the differences say: all accuracies count, not Acc alone."""
        if not self.runs:
            return "not run"
        if any(run.stream.get(LEAK) for run in self.runs):
            return "leak: no comparison"
        differences = self.differences()
        if not differences:
            return "no paper value" if self.cell is None else "other machine: compare the order"
        missed = {metric: by for metric, by in differences.items() if abs(by) > POINTS}
        if not missed:
            found = "reproduced"
        elif all(abs(by) <= (self.ours[metric].half or 0.0) for metric, by in missed.items()):
            found = "inside our interval"
        else:
            found = _direction(missed) + f" ({', '.join(_NAMES[metric] for metric in missed)})"
        return found + "; other base network" * (not self.usual_base) + "; other setting" * bool(self.setting)


_NAMES = {"acc": "Acc", "base": "base", "novel": "novel", "hm": "HM"}


def _direction(differences: dict[str, float]) -> str:
    signs = {by > 0 for by in differences.values()}
    return "differs" if len(signs) > 1 else "above" if signs == {True} else "below"


def place(experiment: Experiment, results: Iterable[RunResult], *, loosely: bool = False) -> list[Record]:
    """The finished results that belong to the experiment, each with its row, told by method and parameters.

    ``loosely``, for results that were made for this experiment: parameters that the row does not set may be others.
    """
    records = []
    for result in results:
        if not result.finished or result.stream.get("partition") != experiment.partition:
            continue
        if bool(result.stream.get(FOREIGN)) != experiment.foreign_orders:
            continue  # the leak of the published code stands in a table of its own
        if "features" in result.stream and "acc" not in experiment.metrics:
            continue  # its time is not that of a run
        rows = [row for row in experiment.rows if _belongs(row, result, experiment, loosely)]
        strays = {row.label: len(_strayed(row, result)) for row in rows}
        for row in rows:
            if strays[row.label] == min(strays.values()):  # a result without refinement is T = 0, not DSR with T = 0
                memory = result.params.get("memory_size")
                kept = memory if isinstance(memory, int) and "acc" in experiment.metrics else None
                records.append(Record(row, str(result.stream["dataset"]), kept, result))
    return records


def lines(experiment: Experiment, records: Sequence[Record], rows: Sequence[Row] | None = None) -> list[Line]:
    """The whole table: every row and data set of the paper, then those of the records that it does not have."""
    groups: dict[tuple[str, str, int | None], dict[tuple[str, str, int], list[RunResult]]] = {}
    known = {row.label: row for row in (experiment.rows if rows is None else rows)}
    for row in known.values():
        for dataset in experiment.datasets:
            printed = [
                c for c in paper.cells() if (c.table, c.row, c.dataset) == (experiment.table, row.label, dataset)
            ]
            for memory in [cell.memory for cell in printed] or [None]:
                groups[row.label, dataset, memory] = {}
    for record in records:
        known.setdefault(record.row.label, record.row)
        bases = groups.setdefault((record.row.label, record.dataset, record.memory), {})
        kind = (base_text(record.result), setting_text(record.row, record.result), _training_length(record.result))
        runs = bases.setdefault(kind, [])
        if record.result not in runs:  # kept for two experiments, it is one run
            runs.append(record.result)
    has_memory = {(label, dataset) for label, dataset, memory in groups if memory is not None}
    order = {label: place for place, label in enumerate(known)}
    found = []
    for (label, dataset, memory), bases in sorted(groups.items(), key=lambda item: order[item[0][0]]):
        if memory is None and not bases and (label, dataset) in has_memory:
            continue
        for (base, setting, _), runs in (bases or {("", "", 0): []}).items():
            found.append(_line(experiment, known[label], (dataset, memory), (base, setting), runs))
    return found


def base_text(result: RunResult) -> str:
    """The base network in a few words: the file it came from, or the recipe where it differs from the paper's."""
    features = result.stream.get("features")
    backbone = features.get("backbone") if isinstance(features, dict) else result.params.get("backbone")
    words = [] if backbone in (None, "reduced_resnet18") else [str(backbone)]
    weights = result.params.get("weights") or result.base.get("weights")
    if weights:
        named = _kept_kind(result) or str(weights).rpartition("/")[2]
        return ", ".join([*words, named, *_heads(result), *_strays(result)])
    return ", ".join([*words, recipe_text(_recipe(result))])


def setting_text(row: Row, result: RunResult) -> str:
    """The parameters of a result that are not those of its row, network and memory apart."""
    strays = _strayed(row, result)
    return ", ".join(f"{name}={text(result.params[name])}" for name in result.params if name in strays)


def _heads(result: RunResult) -> list[str]:
    """How a projection was trained on the given network, if there is one: such results are not averaged with others."""
    recipe = result.base.get("recipe")
    if not isinstance(recipe, dict) or not recipe.get("projection"):
        return []
    views = " on features" if result.base.get("heads") else ""
    return [f"projection by {recipe['objective']}, {recipe['head_epochs']} epochs{views}"]


def _kept_kind(result: RunResult) -> str | None:
    """What networks share that were trained alike, one for each class order: their results are averaged."""
    trained, order = _trained(result), result.stream.get("order_seed")
    if trained is None or not isinstance(order, int) or result.stream.get(FOREIGN):
        return None
    base = list(result.session_classes[0])
    own = class_order(sum(map(len, result.session_classes)), order)[: len(base)] == base
    return f"{trained.get('objective')}, {trained.get('schedule')}, one network a class order" if own else None


def _training_length(result: RunResult) -> int:
    """Epochs of a kept network, else 0: only networks trained for as long are averaged."""
    epochs = (_trained(result) or {}).get("epochs")
    return epochs if isinstance(epochs, int) and _kept_kind(result) else 0


def _trained(result: RunResult) -> dict[str, JSON] | None:
    features = result.stream.get("features")
    trained = features.get("trained") if isinstance(features, dict) else None
    return trained if isinstance(trained, dict) else None


def _range(runs: Sequence[RunResult], read: Callable[[RunResult], JSON]) -> str:
    """The values of the runs as one number or from the least to the largest; empty if there are none."""
    values = sorted({value for run in runs if isinstance(value := read(run), int) and value})
    return "" if not values else str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _strays(result: RunResult) -> list[str]:
    """How far the network is from the one that the partition asks for."""
    if result.stream.get(FOREIGN):
        return ["LEAK: one network for every class order"]
    leaked, untrained = (result.stream.get(name) for name in (LEAK, UNTRAINED))
    return [f"LEAK: trained on {leaked} novel classes"] * bool(leaked) + [
        f"not trained on {untrained} base classes"
    ] * bool(untrained)


def recipe_text(recipe: Recipe) -> str:
    """Objective, epochs and what else differs from the paper's recipe.

    >>> recipe_text(Recipe(objective="sc", epochs=20, schedule="onecycle"))
    'sc, 20 epochs, schedule=onecycle'
    """
    usual = Recipe()
    names = ("lr", "momentum", "weight_decay", "schedule", "augment", "normalize")
    other = [f"{name}={getattr(recipe, name)}" for name in names if getattr(recipe, name) != getattr(usual, name)]
    return ", ".join([recipe.objective, f"{recipe.epochs} epochs", *other])


def table_of(experiment: Experiment, table: Sequence[Line]) -> Table:
    """The lines with a title and what must be known to read them."""
    note = NOTE + (f" The paper says: {experiment.claim}." if experiment.claim else "")
    return Table(f"{experiment.name}: {experiment.title}", HEADER, table_body(table), note)


def records_of(experiment: Experiment, table: Sequence[Line]) -> list[dict[str, JSON]]:
    """One record a line with every metric; None where there is no value."""
    found = []
    for line in table:
        record: dict[str, JSON] = {
            "experiment": experiment.name, "row": line.row.label, "setting": line.setting, "method": line.row.method,
            "dataset": line.dataset, "partition": experiment.partition, "memory": line.memory, "base": line.base,
        }  # fmt: skip
        for metric in experiment.metrics:
            value = line.ours.get(metric)
            record[f"paper_{metric}"] = None if line.cell is None else line.cell.best(metric)
            for name in ("mean", "std", "half"):
                kept = {"mean": "ours", "std": "std", "half": "half95"}[name]
                record[f"{kept}_{metric}"] = None if value is None else getattr(value, name)
        found.append({**record, "runs": draws(line.runs) if line.runs else "", "verdict": line.verdict})
    return found


def _belongs(row: Row, result: RunResult, experiment: Experiment, loosely: bool) -> bool:
    if not row.exists or row.method != result.method:
        return False
    strays = _strayed(row, result)
    if strays & _fixed(row) if loosely else strays:
        return False
    if result.params.get("weights") or result.base.get("weights"):
        return not experiment.trains_its_base
    return _recipe(result).objective == _asked_recipe(row).objective


def _strayed(row: Row, result: RunResult) -> set[str]:
    """The names of the result's parameters that are not the row's."""
    wanted = _expected(row.method, row.preset, json.dumps(row.params, sort_keys=True))
    method = by_name(row.method, METHODS, "method")
    own = {name: effective(method, name, result.params) for name in result.params}
    gone = {name for name, usual in method.retired.items() if usual in (own.get(name), ...)}  # of older result files
    follows = {method.novel_classes} - row.params.keys()  # set by the partition
    return {name for name in own.keys() - NOT_COMPARED - gone - follows if own[name] != wanted.get(name)}


def _fixed(row: Row) -> set[str]:
    """The parameters that make the row what it is."""
    presets = by_name(row.method, METHODS, "method").presets
    return {*row.params, *presets.get(row.preset or "", {})}


@cache
def _expected(method: str, preset: str | None, params: str) -> dict[str, JSON]:
    """All parameters of a row's learner."""
    full = Job(method, json.loads(params), preset).learner(32).get_params()
    cls = by_name(method, METHODS, "method")
    return {name: effective(cls, name, full) for name in full}


def _asked_recipe(row: Row) -> Recipe:
    cls = by_name(row.method, METHODS, "method")
    changes = row.params.get("recipe")
    return cls.base_recipe.with_changes(changes if isinstance(changes, dict) else {})


def _recipe(result: RunResult) -> Recipe:
    cls = by_name(result.method, METHODS, "method")
    changes = result.params.get("recipe")
    return cls.base_recipe.with_changes(changes if isinstance(changes, dict) else {})


def _line(
    experiment: Experiment, row: Row, on: tuple[str, int | None], kind: tuple[str, str], runs: Sequence[RunResult]
) -> Line:
    (dataset, memory), (base, setting) = on, kind
    ours: dict[str, Estimate] = {}
    for metric in experiment.metrics:
        if (value := over_seeds(runs, _READ[metric])) is not None:
            ours[metric] = value
    usual = bool(runs) and base == recipe_text(_asked_recipe(row))
    if any(_kept_kind(run) for run in runs):
        base += f", {_range(runs, lambda run: (_trained(run) or {}).get('epochs'))} epochs"
    if any(run.stream.get(FOREIGN) for run in runs):
        base += f", trained on {_range(runs, lambda run: run.stream.get(LEAK))} novel classes"
    cell = paper.find(experiment.table, row.label, dataset, memory)
    return Line(row, dataset, memory, base, setting, usual, cell, tuple(runs), ours)


def table_body(table: Sequence[Line]) -> list[list[str]]:
    return [
        [
            line.label if line.cell is None or line.cell.printed_row is None else
            f"{line.label} (printed {line.cell.printed_row})",
            line.dataset,
            "" if line.memory is None else str(line.memory),
            line.base,
            _printed(line.cell),
            _found(line.ours),
            "" if line.difference is None else f"{line.difference:+.1f}",
            draws(line.runs) if line.runs else "",
            line.verdict,
        ]
        for line in table
    ]  # fmt: skip


def _printed(cell: paper.Cell | None) -> str:
    if cell is None:
        return ""
    texts = {}
    for name in cell.values:
        value = cell.best(name)
        texts[name] = ("" if value is None else f"{value:.1f}") + ("*" if name in cell.misprints else "")
    return _joined(texts)


def _found(ours: dict[str, Estimate]) -> str:
    texts = {name: f"{value.mean:.1f}" for name, value in ours.items()}
    for name in ("acc", "seconds"):
        if name in ours and (half := ours[name].half) is not None:
            texts[name] += f" ± {half:.1f}"
    return _joined(texts) if texts else ""


def _joined(texts: dict[str, str]) -> str:
    if "acc" not in texts:
        return f"{texts['seconds']} s" + (f", {texts['gigabytes']} GB" if "gigabytes" in texts else "")
    hm = f" | {texts['hm']}" if "hm" in texts else ""
    return f"{texts['acc']} ({texts.get('base', '')}/{texts.get('novel', '')}){hm}"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
