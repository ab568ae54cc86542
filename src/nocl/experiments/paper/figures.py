"""An experiment's figure as SVG and PNG: bars beside the paper's, a sweep, or the losses of the two levels.

The same results give the same SVG. What was never run is not drawn; a figure without any result says so.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from nocl.experiments.paper.comparison import Line
from nocl.experiments.paper.tables import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0b62b8", "#d1590a", "#1a8a4a", "#7a4fc4")
NAMES = {"acc": "Acc", "base": "base", "novel": "novel", "hm": "HM"}


def draw(experiment: Experiment, table: Sequence[Line]) -> dict[str, bytes]:
    """The figure as ``svg`` and ``png``."""
    drawers = {"bars": _bars, "sweep": _sweeps, "losses": _losses}
    with empty_figure() as figure:
        drawers[experiment.figure](figure, experiment, table)
        if not figure.axes:
            figure.text(0.5, 0.5, f"{experiment.name}: not run", ha="center")
        else:
            figure.suptitle(experiment.title)
        return {kind: saved(figure, kind) for kind in ("svg", "png")}


@contextmanager
def empty_figure() -> Iterator[Any]:
    """A figure in the style of all of them; drawn and saved inside the block."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "nocl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        yield Figure(figsize=(9, 4.5), layout="constrained")


def saved(figure: Any, kind: str) -> bytes:
    """The figure as bytes; the same figure gives the same SVG."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _bars(figure: Any, experiment: Experiment, table: Sequence[Line]) -> None:
    """One panel a data set: the paper's value and ours, side by side."""
    metric = experiment.metrics[0]
    shown = [line for line in table if line.runs]
    datasets = list(dict.fromkeys(line.dataset for line in shown))
    for place, dataset in enumerate(datasets):
        axes = figure.add_subplot(1, len(datasets), place + 1)
        some = [line for line in shown if line.dataset == dataset]
        names = [line.label + ("" if line.memory is None else f" {line.memory}") for line in some]
        for i, line in enumerate(some):
            printed = None if line.cell is None else line.cell.best(metric)
            if printed is not None:
                axes.barh(i + 0.2, printed, 0.4, color=COLOURS[1], label="paper")
            value = line.ours[metric]
            axes.barh(i - 0.2, value.mean, 0.4, xerr=value.half, color=COLOURS[0], label="ours")
        axes.set_yticks(range(len(some)), names)
        axes.invert_yaxis()
        axes.set_title(dataset)
        axes.set_xlabel(NAMES.get(metric, metric))
        _legend(axes)


def _sweeps(figure: Any, experiment: Experiment, table: Sequence[Line]) -> None:
    """One panel a parameter and data set: every metric over the parameter's values; the paper's as crosses."""
    shown = [line for line in table if line.runs and line.row.x is not None]
    panels = list(dict.fromkeys(_panel(line) for line in shown))
    for place, (panel, title) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        some = [line for line in shown if _panel(line) == (panel, title)]
        some.sort(key=lambda line: line.row.x or 0.0)
        for colour, metric in zip(COLOURS, experiment.metrics):
            x = [line.row.x for line in some if metric in line.ours]
            y = [line.ours[metric].mean for line in some if metric in line.ours]
            axes.plot(x, y, "o-", color=colour, label=NAMES[metric])
            printed = [(line.row.x, line.cell.best(metric)) for line in some if line.cell is not None]
            if printed:
                axes.plot(*zip(*printed), "x", color=colour, label=f"{NAMES[metric]}, paper")
        axes.set_xlabel(panel)
        axes.set_title("\n".join(wrap(title, 80 // len(panels))), fontsize=7)
        _legend(axes)


def _panel(line: Line) -> tuple[str, str]:
    """What the lines of one curve share: the parameter, and data set, network and setting for the title."""
    return line.row.panel, ", ".join(part for part in (line.dataset, line.base, line.setting) if part)


def _losses(figure: Any, experiment: Experiment, table: Sequence[Line]) -> None:
    """Lower and upper level over all online iterations of the first run of each line."""
    shown = [line for line in table if line.runs and line.runs[0].log.get("lower_loss")]
    for place, line in enumerate(shown):
        for level, name in enumerate(("lower_loss", "upper_loss")):
            points = line.runs[0].log.get(name)
            axes = figure.add_subplot(2, len(shown), level * len(shown) + place + 1)
            axes.plot(points if isinstance(points, list) else [], color=COLOURS[level], linewidth=1)
            axes.set_ylabel(name.replace("_", " level "))
            axes.set_xlabel("iteration, all sessions in a row")
            if level == 0:
                axes.set_title("\n".join(wrap(_panel(line)[1], 80 // len(shown))), fontsize=7)


def _legend(axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    axes.legend(list(unique.values()), list(unique), fontsize=7)
