"""One self-contained HTML page about a set of runs: no script, no outside request, the same bytes every time.

Everything that came from a result is escaped; a method's name or parameter cannot become markup.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__
from nocl.report import svg
from nocl.report.style import style
from nocl.report.summary import Estimate, Summary, by_setting, text
from nocl.report.tables import columns, duration, intervals_note, percent, session_rows, size
from nocl.results import RunResult

OPEN_RUNS = 2  # so many runs are shown unfolded
POINTS = 300  # longer logs are averaged to so many points
CONVERGENCE = {
    "base_loss": "Base training loss",
    "projection_loss": "Projection training loss",
    "lower_loss": "Lower level (refinement) loss",
    "upper_loss": "Upper level loss",
    "learning": "Term that learns new classes, mean of each session",
    "reminding": "Term that reminds of old classes, mean of each session",
    "keeping": "Term that keeps features, mean of each session",
    "likeness": "Likeness of new images to old classes, mean of each session",
}


def page(rows: Sequence[Summary]) -> str:
    """The whole document."""
    settings = by_setting(rows)
    runs = sum(len(row.runs) for row in rows)
    lines = max((len(some) for some in settings.values()), default=0)
    methods = len({row.first.method for row in rows})
    title = f"nocl report: {', '.join(settings)}"
    body = [_comparison(setting, some) for setting, some in settings.items()]
    body.append("<h2>Runs</h2>")
    body += [_run(run, row, unfold=runs <= OPEN_RUNS) for row in rows for run in row.runs]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style(max(lines, 24))}</style></head>\n<body><main>"
        f'<h1>Online class-incremental learning</h1><p class="quiet">{_count(methods, "method")}, '
        f"{_count(len(settings), 'setting')}, {_count(runs, 'run')}.</p>"
        + "\n".join(body)
        + f'<p class="quiet">Written by nocl {escape(__version__)}.</p></main></body></html>\n'
    )


def _comparison(setting: str, rows: Sequence[Summary]) -> str:
    sizes = rows[0].first.sizes
    later = f"{sum(sizes[1:])} more in {_count(len(sizes) - 1, 'session')}"
    about = f"{_count(sizes[0], 'base class', 'es')}, then {later}"
    chance = f"guessing among all of them would reach {percent(1 / sum(sizes))} %"
    note = f"{intervals_note(rows)} Sorted by Acc."
    if not all(row.first.finished for row in rows):
        note += " Unfinished runs stand last: their Acc is over fewer classes."
    return (
        f"<section><h2>{escape(setting)}</h2><p>{about}; {chance}.</p>"
        f'{_comparison_table(rows)}<p class="quiet">{escape(note)}</p>{_curves(rows)}</section>'
    )


def _comparison_table(rows: Sequence[Summary]) -> str:
    head = "".join(f'<th title="{escape(column.hint)}">{escape(column.title)}</th>' for column in columns(rows))
    lines = []
    for row in rows:
        cells = []
        for column in columns(rows):
            meter = f' class="acc" style="--share:{100 * row.acc.mean:.1f}%"' if column.title == "Acc" else ""
            spread = column.estimate and column.estimate(row)
            hint = f' title="standard deviation {percent(spread.std)}"' if spread and spread.std is not None else ""
            cells.append(f"<td{meter}{hint}>{escape(column.cell(row))}</td>")
        mark = "" if row.first.finished else ' class="unfinished"'
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    rest = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table class="wide">{rest}</table></div>'


def _curves(rows: Sequence[Summary]) -> str:
    first = 0 if rows[0].first.sizes[0] else 1
    drawn = _chart(
        rows,
        [row.curve for row in rows],
        [row.acc.mean for row in rows],
        "Acc in percent over all classes seen, after each session.",
        x_label="session" if first else "session (0 is the base)",
        first=first,
    )
    tested = [row for row in rows if row.anytime and row.a_auc is not None]
    for every in sorted({row.first.anytime.every for row in tested if row.first.anytime is not None}):
        some = [row for row in tested if row.first.anytime is not None and row.first.anytime.every == every]
        drawn += _chart(
            some,
            [row.anytime for row in some],
            [row.a_auc.mean for row in some if row.a_auc is not None],
            f"Accuracy in percent over the classes met so far, tested every {every} images. Beside a name: A_AUC.",
            x_label="images after the base session",
            first=1,
            step=every,
        )
    return drawn


def _chart(
    rows: Sequence[Summary], curves: Sequence[Sequence[Estimate]], values: Sequence[float], caption: str,
    *, x_label: str, first: int, step: int = 1,
) -> str:  # fmt: skip
    """One line a row with its interval, and a legend with one value beside each name."""
    lines, names = [], []
    for index, (row, curve, value) in enumerate(zip(rows, curves, values)):
        means = [point.mean for point in curve]
        halves = [point.half for point in curve]
        low = high = None
        if all(half is not None for half in halves):
            low = [max(mean - (half or 0), 0.0) for mean, half in zip(means, halves)]
            high = [min(mean + (half or 0), 1.0) for mean, half in zip(means, halves)]
        lines.append(svg.Series(row.label, means, low, high))
        stores = " †" if row.first.tags["stores_exemplars"] else ""
        names.append(
            f'<li class="k{index}" tabindex="0">{svg.swatch(index)}<span>{escape(row.label)}{stores}</span>'
            f"<b>{percent(value)}</b></li>"
        )
    few = " few" if len(rows) <= 12 else " many"
    chart = svg.line_chart(lines, x_label=x_label, y_label="Acc", first=first, step=step)
    caption += " Point at a line or a name to bring it out."
    if any(row.first.tags["stores_exemplars"] for row in rows):
        caption += " † stores exemplars."
    if any(line.low for line in lines):
        caption += " Bands are 95 % intervals over seeds" + (", shown for the first six." if len(rows) > 6 else ".")
    return (
        f'<figure class="card"><div class="chart{few}">{chart}<ul class="legend">{"".join(names)}</ul></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _run(run: RunResult, row: Summary, *, unfold: bool) -> str:
    order = text(run.stream.get("order_seed"))
    unfinished = "" if run.finished else " <span class='tag warn'>unfinished</span>"
    head = (
        f"{escape(row.label)}{unfinished}<small>{escape(row.setting)}, seed {run.seed}, "
        f"class order {escape(order)}, Acc {percent(run.acc)}, HM {percent(run.hm)}</small>"
    )
    parts = [
        f"<div>{_tags(run)}</div>",
        html_table(*session_rows(run)),
        f'<div class="pair">{_matrix(run)}{_confusion(run)}{_time(run)}{_state(run)}',
        f"{_convergence(run)}{_cosines(run)}</div>",
        _facts("Parameters", run.params),
        _facts("Base", run.base),
        _facts("Stream", run.stream),
        _facts("Environment", run.environment),
    ]
    return f"<details{' open' * unfold}><summary>{head}</summary><div>{''.join(parts)}</div></details>"


def _tags(run: RunResult) -> str:
    stores, told = run.tags["stores_exemplars"], run.tags["uses_boundaries"]
    words = [
        "stores exemplars" if stores else "stores no exemplars",
        "uses session boundaries" if told else "does not use session boundaries",
        f"average {percent(run.average)}",
        f"forgetting {percent(run.forgetting)}",
    ]
    if run.peak_memory is not None:
        words.append(f"peak memory {size(run.peak_memory)}")
    warn = " warn" if stores else ""
    first = f'<span class="tag{warn}">{words[0]}</span>'
    return first + "".join(f'<span class="tag">{word}</span>' for word in words[1:])


def html_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table that scrolls on a narrow screen; every cell escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _matrix(run: RunResult) -> str:
    return _figure(
        "Accuracy matrix",
        svg.heat_map(run.accuracy, len(run.sizes)),
        "Percent. Row: after that session. Column: tested on that session's classes.",
    )


def _confusion(run: RunResult) -> str:
    kinds = ("right", "wrong, same group", "wrong, other group")
    keys = "".join(f'<span><i style="background:var(--c{c})"></i>{name}</span>' for c, name in zip((2, 7, 1), kinds))
    drawn = f'<p class="keys">{keys}</p>'
    names = {
        "base": ("base_right", "base_as_base", "base_as_novel"),
        "novel": ("novel_right", "novel_as_novel", "novel_as_base"),
    }
    notes = []
    for group, fields in names.items():
        drawn += svg.stacked_bars(
            f"Images of {group} classes, %",
            [[counts[name] for name in fields] for counts in run.confusion],
            kinds,
        )
        total = sum(run.confusion[-1][name] for name in fields)
        other = "novel" if group == "base" else "base"
        if total:
            crossed = percent(run.confusion[-1][fields[2]] / total)
            notes.append(f"{crossed} % of the images of {group} classes are taken for {other} ones")
    return _figure("Confusion of base and novel", drawn, f"In the end {' and '.join(notes)}." if notes else "")


def _time(run: RunResult) -> str:
    testing = duration(math.fsum(run.test_seconds))
    caption = f"Base training and statistics took {duration(run.seconds[0])}; testing took {testing} in all."
    online = run.seconds[1:]
    if not online:
        return _figure("Time", "", caption)
    names = [str(t + 1) for t in range(len(online))]
    drawn = svg.bars("Seconds to learn each session", online, names, [duration(value) for value in online])
    return _figure("Time per session", drawn, caption)


def _state(run: RunResult) -> str:
    total = sum(run.state_bytes.values())
    body = []
    for kind, count in run.state_bytes.items():
        body.append([kind, size(count), f"{percent(count / total)} %" if total else "–"])
    return _figure(
        "State carried after the last session",
        html_table(["Kind", "Size", "Share"], body),
        f"{size(total)} in all.",
    )


def _convergence(run: RunResult) -> str:
    drawn = ""
    for name, title in CONVERGENCE.items():
        logged = _logged(run.log.get(name))
        if logged:
            every = math.ceil(max(map(len, logged)) / POINTS)
            lines = [svg.Series(f"line {index + 1}", _thinned(line, every)) for index, line in enumerate(logged)]
            chart = svg.line_chart(lines, x_label="step", y_label=title, percent=False, height=180, step=every)
            notes = [f"{len(lines)} lines."] * (len(lines) > 1) + [f"Means of {every} steps."] * (every > 1)
            drawn += _figure(title, chart, " ".join(notes))
    return drawn


def _cosines(run: RunResult) -> str:
    """How near to orthogonal the prototypes are when a session ends, before and after their refinement."""
    lines = [_logged(run.log.get(name)) for name in ("cosine_before", "cosine_after")]
    if any(len(line) != 1 for line in lines):
        return ""
    (before,), (after,) = lines
    names = ("before refinement", "after")
    series = [svg.Series(name, line) for name, line in zip(names, (before, after))]
    chart = svg.line_chart(series, x_label="refinement", y_label="mean |cosine|", percent=False, height=180)
    keys = "".join(f"<span>{svg.swatch(index)}{name}</span>" for index, name in enumerate(names))
    caption = f"At the end {before[-1]:.4f} before and {after[-1]:.4f} after; 0 is orthogonal."
    return _figure("Mean absolute cosine between prototypes", f'<p class="keys">{keys}</p>{chart}', caption)


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


def _figure(title: str, drawn: str, caption: str) -> str:
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{drawn}{words}</figure>"


def _facts(title: str, facts: Mapping[str, JSON]) -> str:
    if not facts:
        return ""
    items = ""
    for key, value in facts.items():
        words = text(value)
        items += f"<dt>{escape(key)}</dt><dd{' class=long' * (len(words) > 300)}>{escape(words)}</dd>"
    return f"<div><h3>{escape(title)}</h3><dl>{items}</dl></div>"


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"
