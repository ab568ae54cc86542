"""The table of `nocl compare`: methods on identical features, best first, with the joint linear probe."""

import json
import math
from collections.abc import Sequence

from nocl.experiments.report.summary import LEAK, SILENT, UNTRAINED, Summary, draws, summarise
from nocl.experiments.report.tables import (
    MISSING,
    Table,
    duration,
    intervals_note,
    markdown_text,
    percent,
    percent_estimate,
    size,
)
from nocl.methods import METHODS
from nocl.metrics import hm
from nocl.plumbing.parameters import parameters_of
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON
from nocl.results import RunResult

HEADER = ("Method", "Acc", "Base", "Novel", "HM", "Average", "Runs", "State", "Online", "Test")


def comparison_table(results: Sequence[RunResult], bound: RunResult | None = None) -> str:
    """Markdown, one table for each partition; ``bound`` is the run of the joint linear probe.

    Methods that use other stages of the same network are in the same table.
    """
    settings: dict[str, list[Summary]] = {}
    for row in summarise(results):
        settings.setdefault(row.setting, []).append(row)
    parts = []
    for rows in settings.values():
        stream = rows[0].first.stream
        body = [_row(row) for row in sorted(rows, key=lambda row: -row.acc.mean)]
        if bound is not None:
            body.insert(0, _bound_row(bound, rows[0].first))
        title = ", ".join([f"{stream['dataset']}, {stream['partition']}", *_marks(stream)])
        parts.append(Table(title, HEADER, body, intervals_note(rows)))
    return markdown_text(parts)


def comparison_numbers(results: Sequence[RunResult], bound: RunResult | None = None) -> list[JSON]:
    """The same unrounded, a row for each method and partition with every order's values."""
    rows: list[JSON] = []
    for row in summarise(results):
        first = row.first
        rows.append(
            {
                "method": first.method,
                "label": _label(row),
                "partition": first.stream["partition"],
                "features": first.stream.get("features"),
                LEAK: first.stream.get(LEAK),
                UNTRAINED: first.stream.get(UNTRAINED),
                SILENT: bool(first.stream.get(SILENT)),
                "params": {name: value for name, value in first.params.items() if name != "weights"},
                "orders": [run.stream["order_seed"] for run in row.runs],
                "acc": [run.acc for run in row.runs],
                "base": [run.base_acc for run in row.runs],
                "novel": [run.novel_acc for run in row.runs],
                "hm": [run.hm for run in row.runs],
                "average": [run.average for run in row.runs],
                "statistics_bytes": first.state_bytes["statistics"],
                "rows_at_once": first.stream.get("rows_at_once", first.stream["batch_size"]),
                "online_seconds": [math.fsum(run.seconds[1:]) for run in row.runs],
                "test_seconds": [math.fsum(run.test_seconds) for run in row.runs],
                "environment": first.environment,
            }
        )
    if bound is not None:
        about: dict[str, JSON] = {"method": bound.method, "acc": [bound.acc], "params": bound.params}
        rows.append({**about, "environment": bound.environment, "log": bound.log})
    return rows


def _label(row: Summary) -> str:
    """The row's label, or the method with its settings."""
    if row.label != row.first.method:
        return row.label
    usual = parameters_of(by_name(row.first.method, METHODS, "method"))
    chosen = [
        f"{name}={value}"
        for name, value in row.first.params.items()
        if name in usual and name not in ("weights", "recipe", "backbone", "image_size", "seed")
        if json.dumps(value) != json.dumps(usual[name].default)
    ]
    return f"{row.label} ({', '.join(chosen)})" if chosen else row.label


def _row(row: Summary) -> list[str]:
    return [
        _label(row),
        *(percent_estimate(measure) for measure in (row.acc, row.base, row.novel, row.hm, row.average)),
        draws(row.runs),
        size(row.first.state_bytes["statistics"]),
        duration(row.online_seconds.mean),
        duration(math.fsum(math.fsum(run.test_seconds) for run in row.runs) / len(row.runs)),
    ]


def _bound_row(bound: RunResult, beside: RunResult) -> list[str]:
    of_class = dict(zip(bound.session_classes[0], bound.class_accuracy[0]))
    base = [of_class[label] or 0.0 for label in beside.session_classes[0]]
    novel = [of_class[label] or 0.0 for block in beside.session_classes[1:] for label in block]
    means = sum(base) / len(base), sum(novel) / len(novel)
    label = f"{bound.method} (all classes at once, many passes: no contender)"
    return [label, *map(percent, (bound.acc, *means, hm(*means))), MISSING, "1 network", MISSING, MISSING, MISSING]


def _marks(stream: dict[str, JSON]) -> list[str]:
    """Remarks about a partition that the network was not trained for."""
    marks = []
    if leaked := stream.get(LEAK):
        marks.append(f"LEAK: the network was trained on {leaked} of the classes that come here as novel")
    if untrained := stream.get(UNTRAINED):
        marks.append(f"the network was not trained on {untrained} of the base classes")
    if stream.get(SILENT):
        marks.append("transfer: what the network was trained on is not known here and may overlap with these classes")
    return marks
