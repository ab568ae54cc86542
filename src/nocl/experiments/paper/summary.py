"""REPRODUCTION.md: the part between two marks is written from committed results, the rest is left as it is."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nocl.experiments.paper.comparison import HEADER, NOTE, Line, lines, place, table_body
from nocl.experiments.paper.tables import EXPERIMENTS
from nocl.experiments.report.tables import markdown_table
from nocl.plumbing.files import write_atomically
from nocl.results import RunResult

BEGIN = "<!-- begin: written by `nocl reproduce --summary`, do not edit -->"
END = "<!-- end: written by `nocl reproduce --summary` -->"


class Kept(NamedTuple):
    """A committed result; one in a folder with an experiment's name was made for that experiment."""

    result: RunResult
    folder: str


def committed(folder: Path) -> list[Kept]:
    """Every result below a folder; JSON files of another kind are passed over."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        value = json.loads(path.read_text("utf-8"))
        if isinstance(value, dict) and {"class_accuracy", "session_classes"} <= value.keys():
            found.append(Kept(RunResult.load(path), path.parent.name))
    return found


def summary(results: Sequence[Kept]) -> str:
    """A table for each experiment with results, a verdict a row; at the end, once, what was never run."""
    parts = [
        "## The paper's tables and ours",
        f"From {len(results)} committed results. {NOTE}",
    ]
    tables: dict[str, list[Line]] = {}
    for experiment in EXPERIMENTS.values():
        own = [kept.result for kept in results if kept.folder == experiment.name]
        others = [kept.result for kept in results if kept.folder != experiment.name]
        table = lines(experiment, place(experiment, own, loosely=True) + place(experiment, others))
        tables[experiment.name] = table
        ran = [line for line in table if line.runs]
        if ran:
            parts.append(f"### {experiment.name}: {experiment.title}")
            if experiment.claim:
                parts.append(f"The paper says: {experiment.claim}.")
            header = [*HEADER, "Commit"]
            body = [[*cells, _commits(line)] for cells, line in zip(table_body(ran), ran)]
            parts.append(markdown_table(header, body).rstrip())
    return "\n\n".join([*parts, *_never_run(tables)])


def _never_run(tables: Mapping[str, Sequence[Line]]) -> list[str]:
    """What is missing: data sets without any run, experiments without any, then rows of the others."""
    everything = [line for table in tables.values() for line in table]
    touched = {line.dataset for line in everything if line.runs}
    items = [f"- on {name}: everything" for name in dict.fromkeys(e.dataset for e in everything) if name not in touched]
    for name, table in tables.items():
        left = {
            line.row.label + ("" if line.memory is None else f" {line.memory}"): None
            for line in table
            if not line.runs and (line.dataset in touched or not any(other.runs for other in table))
        }
        if left:
            items.append(f"- {name}: {', '.join(left) if any(line.runs for line in table) else 'everything'}")
    return ["### Never run", "\n".join(items)] if items else []


def write_summary(results: Sequence[Kept], path: Path) -> None:
    """Replace the generated part of the file, or add it at the end."""
    text = path.read_text("utf-8") if path.exists() else "# Reproduction\n"
    block = f"{BEGIN}\n\n{summary(results)}\n\n{END}"
    if (BEGIN in text) != (END in text) or text.count(BEGIN) > 1:
        raise ValueError(f"{path}: the marks of the generated part are damaged; there must be one pair or none")
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        text = before + block + rest.partition(END)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _commits(line: Line) -> str:
    return ", ".join(sorted({str(run.environment.get("commit"))[:8] for run in line.runs}))
