"""The table and figure of methods on every kind of stream, from the results of `nocl reproduce streams`.

A column is a method with its settings, a row is a stream; one table for each measure: mean and 95 % interval over
seeds. What was not run is empty. The figure has A_last over the streams: what does not depend on the order is a flat
line.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

from nocl.experiments.paper.figures import empty_figure, saved
from nocl.experiments.paper.tables import Experiment, Row
from nocl.experiments.report.summary import Estimate, over_seeds
from nocl.experiments.report.tables import MISSING, Table, csv_text, latex_text, markdown_text, percent_estimate
from nocl.plumbing.files import write_atomically
from nocl.plumbing.types import JSON
from nocl.results import RunResult


class Measure(NamedTuple):
    """What one table shows."""

    name: str
    title: str
    read: Callable[[RunResult], float | None]
    percent: bool = True


MEASURES = (
    Measure("a_auc", "A_AUC: mean accuracy over the tests while learning", lambda run: run.a_auc),
    Measure("a_last", "A_last: accuracy after the last image", lambda run: run.a_last),
    Measure("a_avg", "A_avg: mean accuracy over the ends of sessions", lambda run: run.a_avg),
    Measure("acc", "Mean class accuracy after the last image", lambda run: run.acc),
    Measure("worst_class", "Accuracy of the worst class after the last image", lambda run: run.worst_class),
    Measure("class_forgetting", "Forgetting: drop of a class from its best test", lambda run: run.class_forgetting),
    Measure("learning", "Seconds of learning after the base session", lambda run: fsum(run.seconds[1:]), False),
    Measure("testing", "Seconds of testing", lambda run: fsum(run.test_seconds), False),
)
NOTE = (
    "Percent; ± is half the 95 % interval of the mean over seeds (Student's t), left out where there is one seed or "
    f"all agree. A seed decides the stream and what the method draws; the network is the same. {MISSING}: not run."
)


class Run(NamedTuple):
    """A finished run and the row it belongs to."""

    row: Row
    result: RunResult

    @property
    def stream(self) -> str:
        return str(self.result.stream["partition"]).partition(":")[0]


def write_streams(experiment: Experiment, rows: Sequence[Row], runs: Sequence[Run], folder: Path) -> list[Path]:
    """The tables as Markdown, LaTeX and CSV, the figure as SVG and PNG, and what was measured of each run."""
    found = tables(experiment, rows, runs)
    parts: dict[str, bytes] = {
        "table.md": markdown_text(found).encode(),
        "table.tex": latex_text(found).encode(),
        "table.csv": csv_text(records(experiment, rows, runs)).encode(),
        "runs.json": _lines([measured(run) for run in runs]).encode(),
        **{f"figure.{kind}": content for kind, content in draw(experiment, rows, runs).items()},
    }
    for name, content in parts.items():
        _write(folder / name, content)
    return [folder / name for name in parts]


def tables(experiment: Experiment, rows: Sequence[Row], runs: Sequence[Run]) -> list[Table]:
    """One table for each measure: streams by methods."""
    found = []
    for measure in MEASURES:
        cells = [[_cell(experiment, row, stream, runs, measure) for row in rows] for stream in experiment.streams]
        body = [[stream, *texts] for stream, texts in zip(experiment.streams, cells)]
        note = NOTE if measure.percent else "Mean over seeds, on whatever else the machine did."
        found.append(Table(measure.title, ["Stream", *(row.label for row in rows)], body, note))
    return found


def records(experiment: Experiment, rows: Sequence[Row], runs: Sequence[Run]) -> list[dict[str, JSON]]:
    """One record for each stream and row, with every measure; None if there is no value."""
    found = []
    for stream in experiment.streams:
        for row in rows:
            some = _of(runs, row, stream)
            record: dict[str, JSON] = {"stream": stream, "row": row.label, "method": row.method, "runs": len(some)}
            for measure in MEASURES:
                value = over_seeds(some, measure.read) if some else None
                record |= {measure.name: None if value is None else value.mean}
                record |= {f"{measure.name}_half95": None if value is None else value.half}
            found.append(record)
    return found


def measured(run: Run) -> dict[str, JSON]:
    """The results of one run, with all settings that are needed to repeat it."""
    result = run.result
    about = {key: value for key, value in result.stream.items() if key != "sessions"}
    tests = result.anytime
    return {
        "row": run.row.label, "stream": run.stream, "seed": result.seed,
        **{measure.name: measure.read(result) for measure in MEASURES},
        "base_acc": result.base_acc, "novel_acc": result.novel_acc, "base_seconds": result.seconds[0],
        "images": [] if tests is None else list(tests.images),
        "curve": [] if tests is None else list(tests.accuracy),
        "method": result.method, "params": result.params, "about": about, "environment": result.environment,
    }  # fmt: skip


def draw(experiment: Experiment, rows: Sequence[Row], runs: Sequence[Run]) -> dict[str, bytes]:
    """A_last over the streams as ``svg`` and ``png``; bars are intervals over seeds."""
    a_last = next(measure for measure in MEASURES if measure.name == "a_last")
    with empty_figure() as figure:
        axes = figure.subplots()
        for index, row in enumerate(rows):
            points = [
                (place, value)
                for place, stream in enumerate(experiment.streams)
                if (value := _estimate(_of(runs, row, stream), a_last)) is not None
            ]
            if points:
                _line(axes, row.label, points, index)
        axes.set_xticks(range(len(experiment.streams)), list(experiment.streams))
        axes.set_ylabel("A_last, %")
        axes.set_title(experiment.title)
        if axes.lines:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        return {kind: saved(figure, kind) for kind in ("svg", "png")}


def _line(axes: Any, label: str, points: Sequence[tuple[int, Estimate]], index: int) -> None:
    x = [place for place, _ in points]
    y = [100 * value.mean for _, value in points]
    halves = [100 * (value.half or 0.0) for _, value in points]
    style = ("-", "--", ":", "-.")[index // 5 % 4]
    axes.errorbar(x, y, yerr=halves, marker="os^Dv"[index % 5], linestyle=style, capsize=2, label=label)


def _cell(experiment: Experiment, row: Row, stream: str, runs: Sequence[Run], measure: Measure) -> str:
    value = _estimate(_of(runs, row, stream), measure)
    if value is None:
        return MISSING
    return percent_estimate(value) if measure.percent else f"{value.mean:.1f}"


def _estimate(some: Sequence[RunResult], measure: Measure) -> Estimate | None:
    return over_seeds(some, measure.read) if some else None


def _of(runs: Sequence[Run], row: Row, stream: str) -> list[RunResult]:
    return [run.result for run in runs if (run.row.label, run.stream) == (row.label, stream)]


def _lines(values: Sequence[Mapping[str, JSON]]) -> str:
    """A JSON list with one value on each line, so that a diff shows which run changed."""
    return "[\n" + ",\n".join(json.dumps(value, sort_keys=True) for value in values) + "\n]\n"


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))
