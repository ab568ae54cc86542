"""A table or figure of the paper: its runs performed, then written from their results beside the paper's numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from nocl.data import MissingDataError
from nocl.experiments.grid import RUNS, Engine, Outcome, finished, folder_of, run_grid
from nocl.experiments.job import Job
from nocl.experiments.paper.comparison import Line, Record, lines, records_of, table_of
from nocl.experiments.paper.figures import draw
from nocl.experiments.paper.tables import Experiment, Planned, Row, find
from nocl.experiments.report.page import table_page
from nocl.experiments.report.tables import csv_text, duration, latex_text
from nocl.experiments.streams import Run, write_streams
from nocl.plumbing.files import write_atomically, write_json
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from nocl.run import RESULT

PLAN = "experiment.json"


def perform(
    experiment: Experiment, rows: Sequence[Row], runs: Sequence[Planned], out: Path, engine: Engine, log: str | None
) -> list[Outcome]:
    """Perform what has no result yet and write down which result belongs to which row."""
    save_plan(experiment, rows, runs, out)
    return run_grid([run.job for run in runs], out, engine=engine, log=log, names=[str(run) for run in runs])


def with_data(runs: Sequence[Planned]) -> tuple[list[Planned], dict[str, str]]:
    """The runs whose data set is here, and why the other sets are not. A leak is refused here, before anything runs."""
    missing: dict[str, str] = {}
    first: dict[tuple[str, int | None], Job] = {}  # only foreign orders differ in what leaks
    for run in runs:
        first.setdefault((run.job.dataset, run.job.order_seed if run.job.foreign_order else None), run.job)
    for (dataset, _), job in first.items():
        try:
            job.check_order()
        except MissingDataError as error:
            missing[dataset] = str(error)
    if runs and len(missing) == len({run.job.dataset for run in runs}):
        raise MissingDataError(
            "none of the data sets is here; fetch one with `nocl data get` or name another --dataset"
        )
    return [run for run in runs if run.job.dataset not in missing], missing


def foreseen(runs: Sequence[Planned], out: Path) -> list[str]:
    """What is known at once: the runs, how far each is, and how long the last run of the same method took."""
    known = [result for path in (out / RUNS).glob(f"*/{RESULT}") if (result := RunResult.load(path)).finished]
    told, left = [], 0
    for run in runs:
        folder = folder_of(run.job, out)
        state = "to run"
        if (folder / RESULT).exists():
            so_far = RunResult.load(folder / RESULT)
            state = "finished" if so_far.finished else f"begun: {len(so_far.accuracy) - 1} sessions"
            if so_far.finished and run.job.outdated(so_far):
                state = f"to run again, {', '.join(run.job.outdated(so_far))} changed"
        if finished(folder, run.job) is None:
            left += 1
            same = [r for r in known if (r.method, r.stream.get("dataset")) == (run.job.method, run.job.dataset)]
            if same:
                took = median(sum(result.seconds) + sum(result.test_seconds) for result in same)
                state += f", last {duration(took)}"
        told.append(f"{state:26} {run!s:44} {folder.name}")
    return [*told, f"{len(runs)} runs: {len(runs) - left} finished, {left} to run"]


def kept_used(runs: Sequence[Planned]) -> list[str]:
    """Which kept network the runs of each seed begin from, and which runs train their own beside them."""
    used = {run.job.seed: run.job.network_from for run in runs if run.job.network_from and run.job.order_seed is None}
    told = [f"seed {seed}: frozen methods begin from {path}" for seed, path in sorted(used.items())]
    own = sorted({run.row.label for run in runs if run.job.network_from is None})
    return [*told, f"these train a base network of their own: {', '.join(own)}"] if told and own else told


def write_experiment(experiment: Experiment, table: Sequence[Line], folder: Path) -> list[Path]:
    """The table as Markdown, LaTeX, CSV and HTML, the figure as SVG and PNG."""
    figure = draw(experiment, table)
    svg = figure["svg"].decode()
    written = table_of(experiment, table)
    parts: dict[str, bytes] = {
        "table.md": written.markdown().encode(),
        "table.tex": latex_text([written]).encode(),
        "table.csv": csv_text(records_of(experiment, table)).encode(),
        "table.html": table_page(
            written.title, written.header, written.body, written.note, svg[svg.index("<svg") :]
        ).encode(),
        "figure.svg": figure["svg"],
        "figure.png": figure["png"],
    }
    for name, content in parts.items():
        _write(folder / name, content)
    return [folder / name for name in parts]


def save_plan(experiment: Experiment, rows: Sequence[Row], runs: Sequence[Planned], out: Path) -> None:
    """Which result belongs to which row, so that the table can be made again from the folder alone."""
    entries: list[JSON] = [
        {
            "row": run.row.label, "memory": run.memory,
            "result": str((folder_of(run.job, out) / RESULT).relative_to(out)),
        }
        for run in runs
    ]  # fmt: skip
    plan: dict[str, JSON] = {"experiment": experiment.name, "rows": [row.label for row in rows], "runs": entries}
    write_json(out / experiment.name / PLAN, plan)


def rebuild(folder: Path) -> list[Path]:
    """The table and figure of the experiment in that folder, from its plan and the results there are."""
    plan = json.loads((folder / PLAN).read_text("utf-8"))
    experiment = find(plan["experiment"])
    own = {row.label: row for row in experiment.rows}
    rows = [own.get(label) or Row(label, label) for label in plan["rows"]]
    by_label = {row.label: row for row in rows}
    records = []
    for entry in plan["runs"]:
        path = folder.parent / entry["result"]
        if path.exists() and (result := RunResult.load(path)).finished:
            dataset = str(result.stream["dataset"])
            records.append(Record(by_label[entry["row"]], dataset, entry["memory"], result))
    if experiment.streams:
        return write_streams(experiment, rows, [Run(record.row, record.result) for record in records], folder)
    return write_experiment(experiment, lines(experiment, records, rows), folder)


def keep(experiment: Experiment, outcomes: Sequence[Outcome], written: Sequence[Path], folder: Path) -> None:
    """Copy finished results there, to be committed; of streams, which are many runs, what was written of them."""
    for path in written if experiment.streams else ():
        _write(folder / path.name, path.read_bytes())
    for outcome in () if experiment.streams else outcomes:
        if outcome.result is not None:
            write_json(folder / f"{outcome.folder.name}.json", outcome.result.to_json())


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))
