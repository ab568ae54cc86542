"""Figures as SVG text drawn by hand: line charts with bands, heat maps, stacked bars.

They carry no colours of their own but the page's style variables, so that they follow light and dark, and
nothing that depends on time or chance, so that the same results give the same bytes. 400 units wide: on a
phone one unit is about one pixel and the labels stay readable.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 400
COLOURS = 10
DASHES = ("", "6 3", "1.5 2.5")


class Series(NamedTuple):
    """One line; ``low`` and ``high`` bound its band, if it has one."""

    label: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


class Axis(NamedTuple):
    """A linear scale from values to a length in the figure."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> str:
        """Position of a value, as text."""
        share = (value - self.low) / (self.high - self.low)
        return number(self.start + share * (self.end - self.start))


def number(value: float) -> str:
    """A coordinate with two decimals at most.

    >>> number(1.0), number(2.345678), number(-0.001)
    ('1', '2.35', '0')
    """
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that cover the range, about ``count`` of them.

    >>> ticks(0.0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(0.25, 0.25)
    [0.25, 0.255]
    """
    span = high - low if high > low else max(abs(high), 1e-9) * 0.1
    step = 10.0 ** math.floor(math.log10(span / count))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [round(index * step, 12) for index in range(first, last + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    percent: bool = True,
    bands: int = 6,
    height: int = 260,
    step: int = 1,
    first: int = 0,
) -> str:
    """Lines over ``first * step``, ``(first + 1) * step``, ...

    Bands after the first few appear only while their line is pointed at.
    """
    spread = [value for line in series for part in (line.values, line.low, line.high) for value in part or ()]
    marks = ticks(min(spread), max(spread))
    longest = max(len(line.values) for line in series)
    y = Axis(marks[0], marks[-1], height - 36, 10)
    x = Axis(0, max(longest - 1, 1), 40, WIDTH - 10)
    parts = [_y_grid(y, marks, percent), _x_marks(x, longest, height, step, first)]
    middle = f'x="{(x.start + x.end) / 2:g}" y="{height - 4}" text-anchor="middle"'
    parts.append(f'<text class="axis" {middle}>{escape(x_label)}</text>')
    lines = [_line(line, index, x, y, shown=index < bands) for index, line in enumerate(series)]
    parts += reversed(lines)  # the first, the best, above the others
    return _svg(height, f"{y_label} over {x_label}", parts)


def swatch(index: int) -> str:
    """A short piece of a line as it looks in a chart, for the legend."""
    return (
        '<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true">'
        f'<path class="line" {_stroke(index)} d="M1 4H25"/></svg>'
    )


def heat_map(matrix: Sequence[Sequence[float | None]], columns: int) -> str:
    """Rows of shares from 0 to 1 as cells; None stays empty."""
    cell = (WIDTH - 34) / columns
    tall = min(cell, 30)
    parts = []
    for t, row in enumerate(matrix):
        top = 16 + t * tall
        name = "base" if t == 0 else str(t)
        parts.append(f'<text class="tick" x="28" y="{number(top + tall / 2 + 3.5)}" text-anchor="end">{name}</text>')
        for s, value in enumerate(row):
            parts.append(_cell(value, 32 + s * cell, top, cell, tall, f"after {name}, on session {s or 'base'}"))
    for s in range(columns):
        x = number(32 + (s + 0.5) * cell)
        parts.append(f'<text class="tick" x="{x}" y="11" text-anchor="middle">{s if s else "base"}</text>')
    return _svg(16 + len(matrix) * tall + 4, "accuracy after each session (row) on each session (column)", parts)


def stacked_bars(title: str, columns: Sequence[Sequence[int]], kinds: Sequence[str], height: int = 120) -> str:
    """One bar per session, split into the shares of each kind; a bar without counts stays empty."""
    y = Axis(0, 1, height - 20, 22)
    wide = (WIDTH - 50) / len(columns)
    parts = [_title(title), _y_grid(y, [0, 0.5, 1], True)]
    for t, counts in enumerate(columns):
        total, done = sum(counts), 0
        for kind, (name, count) in enumerate(zip(kinds, counts)):
            if count:
                span = (done / total, (done + count) / total)
                parts.append(_bar(f"kind{kind}", t, wide, y, span, f"after {t or 'base'}: {name} {count} of {total}"))
            done += count
        parts.append(_bar_name("base" if t == 0 else str(t), t, len(columns), height))
    return _svg(height, title, parts)


def bars(title: str, values: Sequence[float], names: Sequence[str], hints: Sequence[str]) -> str:
    """One bar per value, from 0."""
    height = 110
    marks = ticks(0, max(max(values), 1e-9), 3)
    y = Axis(0, marks[-1], height - 20, 22)
    wide = (WIDTH - 50) / len(values)
    parts = [_title(title), _y_grid(y, marks, False)]
    for index, (value, name, hint) in enumerate(zip(values, names, hints)):
        parts.append(_bar("bar", index, wide, y, (0, value), f"{name}: {hint}"))
        parts.append(_bar_name(name, index, len(values), height))
    return _svg(height, title, parts)


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {number(height)}"'
    return f'<svg {box} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _title(words: str) -> str:
    return f'<text class="axis" x="40" y="12">{escape(words)}</text>'


def _bar(kind: str, index: int, wide: float, y: Axis, span: tuple[float, float], hint: str) -> str:
    bottom, top = (float(y.at(value)) for value in span)
    across = f'x="{number(41 + index * wide)}" width="{number(wide * 0.84)}"'
    down = f'y="{number(top)}" height="{number(bottom - top)}"'
    return f'<rect class="{kind}" {across} {down}><title>{escape(hint)}</title></rect>'


def _bar_name(name: str, index: int, count: int, height: int) -> str:
    if index % math.ceil(count / 16):  # no room for every name
        return ""
    middle = number(41 + (index + 0.42) * (WIDTH - 50) / count)
    return f'<text class="tick" x="{middle}" y="{height - 6}" text-anchor="middle">{escape(name)}</text>'


def _stroke(index: int) -> str:
    dash = DASHES[index // COLOURS % len(DASHES)]
    return f'style="stroke:var(--c{index % COLOURS})"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _line(line: Series, index: int, x: Axis, y: Axis, *, shown: bool) -> str:
    points = [f"{x.at(t)} {y.at(value)}" for t, value in enumerate(line.values)]
    band = ""
    if line.low is not None and line.high is not None:
        edge = [f"{x.at(t)} {y.at(value)}" for t, value in enumerate(line.high)]
        edge += [f"{x.at(t)} {y.at(value)}" for t, value in reversed(list(enumerate(line.low)))]
        hidden = "" if shown else " hidden"
        band = f'<path class="band{hidden}" style="fill:var(--c{index % COLOURS})" d="M{"L".join(edge)}Z"/>'
    path = f'<path class="line" {_stroke(index)} d="M{"L".join(points)}"/>'
    if len(points) == 1:
        where = points[0].split()
        path = f'<circle cx="{where[0]}" cy="{where[1]}" r="3" style="fill:var(--c{index % COLOURS})"/>'
    return f'<g class="s k{index}"><title>{escape(line.label)}</title>{band}{path}</g>'


def _y_grid(y: Axis, marks: Sequence[float], percent: bool) -> str:
    parts = []
    for mark in marks:
        at = float(y.at(mark))
        name = f"{100 * mark:g}" if percent else f"{mark:g}"
        parts.append(f'<path class="grid" d="M40 {number(at)}H{WIDTH - 10}"/>')
        parts.append(f'<text class="tick" x="36" y="{number(at + 3.5)}" text-anchor="end">{name}</text>')
    return "".join(parts)


def _x_marks(x: Axis, count: int, height: int, step: int, first: int) -> str:
    begin, last = first * step, (first + count - 1) * step
    marks = [mark for mark in ticks(begin, max(last, begin + 1), 10) if mark == int(mark) and begin <= mark <= last]
    return "".join(
        f'<text class="tick" x="{x.at(mark / step - first)}" y="{height - 21}" text-anchor="middle">{mark:g}</text>'
        for mark in marks
    )


def _cell(value: float | None, x: float, y: float, wide: float, tall: float, hint: str) -> str:
    box = f'x="{number(x)}" y="{number(y)}" width="{number(wide - 1)}" height="{number(tall - 1)}"'
    if value is None:
        return f'<rect class="unseen" {box}/>'
    shade = "strong" if value > 0.7 else "weak"
    title = f"<title>{escape(hint)}: {100 * value:.1f} %</title>"
    words = ""
    if wide >= 20:
        middle = f'x="{number(x + wide / 2)}" y="{number(y + tall / 2 + 3.5)}"'
        words = f'<text class="{shade}" {middle} text-anchor="middle">{100 * value:.0f}</text>'
    return f'<g>{title}<rect class="heat" {box} fill-opacity="{number(0.06 + 0.94 * value)}"/>{words}</g>'
