"""Reports of results: tables over seeds as Markdown, CSV and LaTeX, and one page with figures."""

from collections.abc import Sequence
from pathlib import Path

from nocl.experiments.report.page import page
from nocl.experiments.report.paired import Paired, paired
from nocl.experiments.report.summary import Estimate, Summary, summarise
from nocl.experiments.report.tables import session_rows, session_table, to_csv, to_latex, to_markdown
from nocl.plumbing.files import write_atomically
from nocl.results import RunResult

__all__ = [
    "Estimate",
    "Paired",
    "Summary",
    "page",
    "paired",
    "session_rows",
    "session_table",
    "summarise",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_report",
]


def write_report(results: Sequence[RunResult], folder: str | Path) -> dict[str, Path]:
    """Write report.html, table.md, table.csv and table.tex; the same results give the same bytes."""
    if not results:
        raise ValueError("a report needs at least one result; name the result files of `nocl run`")
    rows = summarise(results)
    texts = {
        "report.html": page(rows),
        "table.md": to_markdown(rows),
        "table.csv": to_csv(rows),
        "table.tex": to_latex(rows),
    }
    paths = {name: Path(folder) / name for name in texts}
    for name, content in texts.items():
        _write(paths[name], content)
    return paths


def _write(path: Path, content: str) -> None:
    write_atomically(path, lambda file: file.write(content.encode()))
