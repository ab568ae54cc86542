"""Tables as text: Markdown, CSV and LaTeX (booktabs); the columns of a summary, and the sessions of one run as rows.

All use one list of columns, so that no two tables can disagree. Accuracies are percentages with
one decimal, except in CSV, which holds the unrounded shares.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nocl.experiments.report.summary import Estimate, Summary, by_setting, draws
from nocl.plumbing.types import JSON
from nocl.results import RunResult

MISSING = "–"


class Column(NamedTuple):
    """One column of the comparison."""

    title: str
    cell: Callable[[Summary], str]
    hint: str
    estimate: Callable[[Summary], Estimate | None] | None = None  # for columns with a mean over seeds


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.486), percent(None), percent(-0.0001)
    ('48.6', '–', '0.0')
    """
    return MISSING if value is None else f"{round(100 * value, 1) + 0.0:.1f}"


def percent_estimate(value: Estimate | None) -> str:
    """A mean with the half width of its interval, or alone if there is only one seed."""
    if value is None:
        return MISSING
    return percent(value.mean) + ("" if value.half is None else f" ± {percent(value.half)}")


def duration(seconds: float) -> str:
    """A time with about three digits.

    >>> duration(0.0123), duration(12.34), duration(3725)
    ('0.012 s', '12.3 s', '1 h 02 min')
    """
    if seconds < 10:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.2f} s"
    if seconds < 600:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """A number of bytes with a decimal unit.

    >>> size(0), size(640), size(4372560)
    ('0 B', '640 B', '4.37 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _measure(title: str, read: Callable[[Summary], Estimate | None], hint: str) -> Column:
    return Column(title, lambda row: percent_estimate(read(row)), hint, read)


def _method(row: Summary) -> str:
    return f"{row.label} [{row.note}]" if row.note else row.label


COLUMNS = (
    Column("Method", _method, "with the parameters in which it differs from other rows of that method"),
    _measure("Acc", lambda row: row.acc, "all classes, after the last session"),
    _measure("Base", lambda row: row.base, "base classes"),
    _measure("Novel", lambda row: row.novel, "classes learned in the stream"),
    _measure("HM", lambda row: row.hm, "harmonic mean of base and novel"),
    _measure("Average", lambda row: row.average, "mean Acc over the sessions"),
    _measure("Forgetting", lambda row: row.forgetting, "drop from the best earlier accuracy"),
    Column("Seeds", lambda row: draws(row.runs), "different seeds and class orders, or orders on given networks"),
    Column("Exemplars", lambda row: "stored" if row.first.tags["stores_exemplars"] else "none", "keeps images"),
    Column("Boundaries", lambda row: "used" if row.first.tags["uses_boundaries"] else "no", "between sessions"),
    Column("Online", lambda row: duration(row.online_seconds.mean), "time to learn the sessions after the base"),
    Column("State", lambda row: size(row.state_bytes.mean), "bytes carried after the last session"),
)


ANYTIME = (
    _measure("A_AUC", lambda row: row.a_auc, "mean accuracy over the tests in the middle of sessions"),
    _measure("A_last", lambda row: row.a_last, "test images of all classes met, after the last image"),
    _measure("A_avg", lambda row: row.a_avg, "the same, mean over the ends of sessions"),
    _measure("Worst class", lambda row: row.worst_class, "accuracy of the class that is known worst"),
    _measure("Class forgetting", lambda row: row.class_forgetting, "drop of a class from its best earlier test"),
    Column("Testing", lambda row: duration(row.test_seconds.mean), "time of all tests, no part of Online"),
)


def columns(rows: Sequence[Summary]) -> tuple[Column, ...]:
    """The columns of a table of these rows: those of tests in the middle of sessions where there were any."""
    at = next(index for index, column in enumerate(COLUMNS) if column.title == "Seeds")
    return (*COLUMNS[:at], *ANYTIME, *COLUMNS[at:]) if any(row.a_auc for row in rows) else COLUMNS


def intervals_note(rows: Sequence[Summary]) -> str:
    """What the ± in a table means, and for which rows there is none."""
    alone = sum(row.seeds == 1 for row in rows)
    if alone == len(rows):
        return "Percent. One seed each: no interval can be given."
    note = "Percent; ± is the half width of the 95 % interval of the mean over seeds (Student's t)."
    if any("order" in draws(row.runs) for row in rows):
        note += (
            " On one given network it is over the order of the novel classes alone, and left out where that changes "
        )
        note += "nothing: it says nothing about other networks."
    return note + (" Rows with one seed have no interval." if alone else "")


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    lines += [[_markdown(cell) for cell in row] for row in body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass(frozen=True)
class Table:
    """A table with title, header, cells and remarks."""

    title: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]
    note: str

    def markdown(self) -> str:
        """A section with the table; the first column is text."""
        return f"## {_markdown(self.title)}\n\n{markdown_table(self.header, self.body)}\n{self.note}\n"

    def latex(self) -> str:
        """A booktabs tabular between two comments."""
        lines = [f"% {_latex(self.title)}", *latex_table(self.header, self.body), rf"% {_latex(self.note)}"]
        return "\n".join(lines) + "\n"


def tables(rows: Sequence[Summary]) -> list[Table]:
    """One table per setting, best Acc first."""
    found = []
    for setting, some in by_setting(rows).items():
        shown = columns(some)
        body = [[column.cell(row) for column in shown] for row in some]
        found.append(Table(setting, [column.title for column in shown], body, intervals_note(some)))
    return found


def markdown_text(some: Sequence[Table]) -> str:
    """The tables one after the other."""
    return "\n".join(table.markdown() for table in some)


def latex_text(some: Sequence[Table]) -> str:
    """The tables one after the other, with the LaTeX packages they need."""
    return "% needs \\usepackage{booktabs}\n" + "".join(table.latex() for table in some)


def csv_text(records: Sequence[Mapping[str, JSON]]) -> str:
    """One line a record under the names of the first; empty where there is no value."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_markdown(rows: Sequence[Summary]) -> str:
    """The tables of the summaries."""
    return markdown_text(tables(rows))


def to_latex(rows: Sequence[Summary]) -> str:
    """The tables of the summaries for LaTeX."""
    return latex_text(tables(rows))


def to_csv(rows: Sequence[Summary]) -> str:
    """One line per row with unrounded shares, empty where there is no value; intervals as half widths."""
    return csv_text([_record(row) for row in rows])


def latex_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a booktabs tabular; the first column is text, the others are aligned to the right."""
    return [
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(map(_latex, header)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex, cells)) + r" \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def session_rows(result: RunResult) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one run: Acc, base, novel, HM and time after each session."""
    header = ["Session", "Classes", "Acc", "Base", "Novel", "HM", "Time"]
    body = []
    for t, (point, seconds) in enumerate(zip(result.curve, result.seconds)):
        if point.acc is None:
            continue  # no base session
        seen = sum(result.sizes[: t + 1])
        body.append(["base" if t == 0 else str(t), str(seen), *map(percent, point), duration(seconds)])
    return header, body


def session_table(result: RunResult) -> str:
    """The sessions of one run as a Markdown table."""
    return markdown_table(*session_rows(result))


def _record(row: Summary) -> dict[str, JSON]:
    run = row.first
    params = {key: value for key, value in run.params.items() if key != "seed"}
    record: dict[str, JSON] = {
        "setting": row.setting,
        "label": row.label,
        "method": run.method,
        "params": json.dumps(params, sort_keys=True),
        "seeds": row.seeds,
        "runs": len(row.runs),
        "note": row.note,
        "finished": run.finished,
        "sessions_learned": len(run.accuracy) - 1,
        "sessions": len(run.sizes) - 1,
        **run.tags,
    }
    for name in ("acc", "base", "novel", "hm", "average", "forgetting", "online_seconds", "test_seconds", "state_bytes",
                 "a_auc", "a_last", "a_avg", "worst_class", "class_forgetting"):  # fmt: skip
        value: Estimate | None = getattr(row, name)
        record[f"{name}_mean"] = None if value is None else value.mean
        record[f"{name}_std"] = None if value is None else value.std
        record[f"{name}_half95"] = None if value is None else value.half
    return record


def _markdown(cell: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]#&])", r"\\\1", " ".join(cell.split()))


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "–": "--",
} | {mark: "\\" + mark for mark in "&%$#_{}"} | {mark: f"{{{mark}}}" for mark in "[]"}  # fmt: skip


def _latex(cell: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in " ".join(cell.split()))
