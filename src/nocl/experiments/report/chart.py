"""A line chart as SVG text. Lines differ in colour, dashes and markers, so they can be distinguished without colours.

Colours are style variables of the page, so that the chart follows light and dark mode. Nothing depends on time or
random numbers, so the same results give the same bytes. 400 units wide: on a phone one unit is about one pixel and the
labels stay readable.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 400
COLOURS = 10
DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
# drawn around the origin, about six units wide
MARKERS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z", "M-2.7-2.7h5.4v5.4h-5.4z", "M0-3.6L3.4 2.6H-3.4z",
    "M0-3.8L3.8 0L0 3.8L-3.8 0z", "M0 3.6L3.4-2.6H-3.4z",
    "M-3.4-1h2.4v-2.4h2v2.4h2.4v2h-2.4v2.4h-2v-2.4h-2.4z", "M-3.6-1h7.2v2h-7.2z",
)  # fmt: skip
MARKED = 30  # a line of more points has no markers


class Series(NamedTuple):
    """One line; ``low`` and ``high`` are the limits of its band, if it has one."""

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
    height: int = 200,
    step: int = 1,
    first: int = 0,
) -> str:
    """Lines over ``first * step``, ``(first + 1) * step``, ...

    Bands after the first few are shown only while the pointer is on their line.
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
    label = escape(f"{y_label} over {x_label}")
    return f'<svg viewBox="0 0 {WIDTH} {number(height)}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def swatch(index: int) -> str:
    """A short piece of a line as it looks in a chart, for the legend."""
    line = f'<path class="line" {_stroke(index)} d="M1 6H33"/>{_marker(index, "17", "6")}'
    return f'<svg class="swatch" viewBox="0 0 34 12" aria-hidden="true">{line}</svg>'


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    return f'style="stroke:var(--c{index % COLOURS})"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _marker(index: int, x: str, y: str) -> str:
    shape = MARKERS[index % len(MARKERS)]
    return f'<path style="fill:var(--c{index % COLOURS})" transform="translate({x} {y})" d="{shape}"/>'


def _line(line: Series, index: int, x: Axis, y: Axis, *, shown: bool) -> str:
    points = [(x.at(t), y.at(value)) for t, value in enumerate(line.values)]
    band = ""
    if line.low is not None and line.high is not None:
        edge = [f"{x.at(t)} {y.at(value)}" for t, value in enumerate(line.high)]
        edge += [f"{x.at(t)} {y.at(value)}" for t, value in reversed(list(enumerate(line.low)))]
        hidden = "" if shown else " hidden"
        band = f'<path class="band{hidden}" style="fill:var(--c{index % COLOURS})" d="M{"L".join(edge)}Z"/>'
    path = f'<path class="line" {_stroke(index)} d="M{"L".join(" ".join(point) for point in points)}"/>'
    markers = "".join(_marker(index, *point) for point in points) if len(points) <= MARKED else ""
    return f'<g class="s k{index}"><title>{escape(line.label)}</title>{band}{path}{markers}</g>'


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
