"""The arena's table: methods on identical features, best first, under the joint linear probe."""

import json
from collections.abc import Sequence

from nocl.methods import METHODS
from nocl.metrics import hm
from nocl.plumbing.parameters import parameters_of
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON
from nocl.report.summary import Summary, summarise
from nocl.report.tables import MISSING, duration, intervals_note, markdown_table, percent, percent_estimate, size
from nocl.results import RunResult

HEADER = ("Method", "Acc", "Base", "Novel", "HM", "Average", "Orders", "State", "Learn 1,000", "Predict 1,000")


def arena_table(results: Sequence[RunResult], bound: RunResult | None = None) -> str:
    """Markdown, one table a partition; ``bound`` is a run whose only session brings all classes.

    Methods that take other stages of the same network stand in the same table.
    """
    parts = []
    settings: dict[str, list[Summary]] = {}
    for row in summarise(results):
        settings.setdefault(_setting(row), []).append(row)
    for rows in settings.values():
        stream = rows[0].first.stream
        body = [_row(row) for row in sorted(rows, key=lambda row: -row.acc.mean)]
        if bound is not None:
            body.insert(0, _bound_row(bound, rows[0].first))
        parts.append(
            f"### {stream['dataset']}, {stream['partition']}\n\n{_marks(stream)}{markdown_table(HEADER, body)}"
        )
        parts.append(intervals_note(rows).replace("over seeds", "over orders of the novel classes") + "\n")
    return "\n".join(parts)


def arena_numbers(results: Sequence[RunResult], bound: RunResult | None = None) -> list[JSON]:
    """The same unrounded, a row for each method and partition with every order's values."""
    rows: list[JSON] = []
    for row in summarise(results):
        first = row.first
        rows.append(
            {
                "method": first.method,
                "label": _label(row),
                "partition": first.stream["partition"],
                "novel_classes_in_network": first.stream.get("novel_classes_in_network"),
                "base_classes_not_in_network": first.stream.get("base_classes_not_in_network"),
                "params": {name: value for name, value in first.params.items() if name != "weights"},
                "orders": [run.stream["order_seed"] for run in row.runs],
                "acc": [run.acc for run in row.runs],
                "base": [run.base_acc for run in row.runs],
                "novel": [run.novel_acc for run in row.runs],
                "hm": [run.hm for run in row.runs],
                "average": [run.average for run in row.runs],
                "statistics_bytes": first.state_bytes["statistics"],
                "seconds_per_1000": _pace(row),
                "environment": first.environment,
            }
        )
    if bound is not None:
        about: dict[str, JSON] = {"method": bound.method, "acc": [bound.acc], "params": bound.params}
        rows.append({**about, "environment": bound.environment, "log": bound.log})
    return rows


def _setting(row: Summary) -> str:
    """Equal for rows on the same data, network and partition."""
    stream = {k: v for k, v in row.first.stream.items() if k not in ("order_seed", "features")}
    network = row.first.stream.get("features")
    return json.dumps([stream, network.get("sha256") if isinstance(network, dict) else None], sort_keys=True)


def _label(row: Summary) -> str:
    """The row's own label, or the method with what was chosen for it."""
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
    pace = _pace(row)
    measures = (row.acc, row.base, row.novel, row.hm, row.average)
    learn, predict = (pace.get(name) for name in ("learn", "predict"))
    return [
        _label(row),
        *(percent_estimate(measure) for measure in measures),
        str(row.seeds),
        size(row.first.state_bytes["statistics"]),
        duration(learn) if isinstance(learn, float) else MISSING,
        duration(predict) if isinstance(predict, float) else MISSING,
    ]


def _bound_row(bound: RunResult, beside: RunResult) -> list[str]:
    of_class = dict(zip(bound.session_classes[0], bound.class_accuracy[0]))
    base = [of_class[label] or 0.0 for label in beside.session_classes[0]]
    novel = [of_class[label] or 0.0 for block in beside.session_classes[1:] for label in block]
    means = sum(base) / len(base), sum(novel) / len(novel)
    label = f"{bound.method} (all classes at once, many passes: no contender)"
    return [label, *map(percent, (bound.acc, *means, hm(*means))), MISSING, "1", MISSING, MISSING, MISSING]


def _pace(row: Summary) -> dict[str, JSON]:
    found = (run.log.get("seconds_per_1000") for run in row.runs)
    return next((pace for pace in found if isinstance(pace, dict)), {})


def _marks(stream: dict[str, JSON]) -> str:
    """What a reader must know about a partition the network was not trained for."""
    marks = []
    if leaked := stream.get("novel_classes_in_network"):
        marks.append(f"**Leak:** the network was trained on {leaked} of the classes that come here as novel.")
    if untrained := stream.get("base_classes_not_in_network"):
        marks.append(f"The network was not trained on {untrained} of the base classes.")
    return "".join(f"{mark}\n\n" for mark in marks)
