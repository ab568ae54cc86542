"""One self-contained HTML page about a set of runs: no script, no outside request, the same bytes every time.

The pages are Jinja templates in ``templates/``; this module prepares their content. Jinja escapes everything that comes
from a result, so a method's name or parameter cannot become markup.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nocl.experiments.report.chart import Series, line_chart, swatch
from nocl.experiments.report.summary import Estimate, Summary, by_setting, text
from nocl.experiments.report.tables import columns, duration, intervals_note, percent, session_rows, size
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__
from nocl.results import RunResult

POINTS = 300  # longer logs are averaged to so many points
KINDS = {
    "base": ("base_right", "base_as_base", "base_as_novel"),
    "novel": ("novel_right", "novel_as_novel", "novel_as_base"),
}


def page(rows: Sequence[Summary]) -> str:
    """The report: one comparison for each setting, then every run, collapsed."""
    settings = by_setting(rows)
    lines = max((len(some) for some in settings.values()), default=0)
    return _render("report.html", settings=settings, rows=rows, lines=lines)


def table_page(title: str, header: Sequence[str], body: Sequence[Sequence[str]], note: str, figure: str = "") -> str:
    """A page of one table; ``figure`` is trusted SVG to show below it."""
    return _render("table.html", title=title, header=header, body=body, note=note, figure=Markup(figure))


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("nocl.experiments.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "duration": duration, "size": size, "text": text, "count": _count}
    environment.globals |= {
        "version": __version__, "swatch": lambda index: Markup(swatch(index)), "charts": charts, "curves": curves,
        "columns": columns, "intervals_note": intervals_note, "session_rows": session_rows, "confusion": confusion,
    }  # fmt: skip
    return environment.get_template(template).render(**values)


class Chart(NamedTuple):
    """Accuracy over time, one line for each row; ``values`` are shown in the legend."""

    rows: Sequence[Summary]
    values: list[float]
    drawn: Markup
    caption: str


def charts(rows: Sequence[Summary]) -> list[Chart]:
    """Acc after each session, and the accuracy of tests within sessions if there are any."""
    first = 0 if rows[0].first.sizes[0] else 1
    drawn = _lines(
        rows, [row.curve for row in rows], x_label="session" if first else "session (0 is the base)", first=first
    )
    caption = "Acc in percent over all classes seen, after each session."
    found = [Chart(rows, [row.acc.mean for row in rows], drawn, caption)]
    tested: dict[int, list[Summary]] = {}
    for row in rows:
        if row.first.anytime is not None and row.anytime and row.a_auc is not None:
            tested.setdefault(row.first.anytime.every, []).append(row)
    for every, some in sorted(tested.items()):
        drawn = _lines(
            some, [row.anytime for row in some], x_label="images after the base session", first=1, step=every
        )
        caption = f"Accuracy in percent over the classes met so far, tested every {every} images. Beside a name: A_AUC."
        found.append(Chart(some, [row.a_auc.mean for row in some if row.a_auc is not None], drawn, caption))
    return found


def _lines(
    rows: Sequence[Summary], curves: Sequence[Sequence[Estimate]], *, x_label: str, first: int, step: int = 1
) -> Markup:
    """One line for each row, with a band if there is an interval."""
    lines = []
    for row, curve in zip(rows, curves):
        means, halves = [point.mean for point in curve], [point.half for point in curve]
        low = high = None
        if None not in halves:
            low = [max(mean - (half or 0), 0.0) for mean, half in zip(means, halves)]
            high = [min(mean + (half or 0), 1.0) for mean, half in zip(means, halves)]
        lines.append(Series(row.label, means, low, high))
    return Markup(line_chart(lines, x_label=x_label, y_label="Acc", first=first, step=step))


class Confusion(NamedTuple):
    """Predictions for the test images of one group of classes after each session: shares of three kinds."""

    group: str
    other: str
    shares: list[list[float] | None]  # right, wrong in its group, taken for the other; None without images


def confusion(run: RunResult) -> list[Confusion]:
    """Confusion between base and novel classes."""
    found = []
    for group, other in (("base", "novel"), ("novel", "base")):
        counts = [[row[kind] for kind in KINDS[group]] for row in run.confusion]
        found.append(Confusion(group, other, [[n / sum(row) for n in row] if sum(row) else None for row in counts]))
    return found


class Curves(NamedTuple):
    """Curves that a method logged under one name."""

    title: str
    names: list[str]  # a legend, where the lines have names
    chart: Markup
    note: str


def curves(log: Mapping[str, JSON]) -> list[Curves]:
    """All lists of numbers in a log; ``X_before`` and ``X_after`` are drawn in one chart X."""
    groups: dict[str, dict[str, list[list[float]]]] = {}
    for name, value in log.items():
        ending = next((word for word in ("before", "after") if name.endswith(f"_{word}")), "")
        if lines := _logged(value):
            groups.setdefault(name.removesuffix(f"_{ending}"), {})[ending] = lines
    return [_curves(name.replace("_", " "), lines) for name, lines in groups.items()]


def _curves(title: str, groups: Mapping[str, list[list[float]]]) -> Curves:
    lines = [line for some in groups.values() for line in some]
    every = math.ceil(max(map(len, lines)) / POINTS)
    series = [
        Series(f"{ending} {index + 1}".strip(), _thinned(line, every))
        for ending, some in groups.items()
        for index, line in enumerate(some)
    ]
    notes = [f"{len(lines)} lines."] * (len(lines) > 1) + [f"Means of {every} steps."] * (every > 1)
    ends = [f"{ending} {some[0][-1]:.4f}" for ending, some in groups.items() if ending]
    notes += [f"At the end: {', '.join(ends)}."] * bool(ends)
    chart = line_chart(series, x_label="step", y_label=title, percent=False, height=180, step=every)
    return Curves(title, [ending for ending in groups if ending], Markup(chart), " ".join(notes))


def _logged(value: JSON) -> list[list[float]]:
    """A list of numbers is one line, a list of such lists one line each; anything else is not drawn."""
    if not isinstance(value, list):
        return []
    parts = value if all(isinstance(part, list) for part in value) else [value]
    lines = []
    for part in parts:
        points = [float(item) for item in part if isinstance(item, int | float)] if isinstance(part, list) else []
        if points and isinstance(part, list) and len(points) == len(part):
            lines.append(points)
    return lines


def _thinned(points: Sequence[float], every: int) -> list[float]:
    chunks = [points[start : start + every] for start in range(0, len(points), every)]
    return [math.fsum(chunk) / len(chunk) for chunk in chunks]


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"
