"""The values printed in the paper's appendix, as data. Known misprints carry what the cell's other numbers imply."""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from nocl.metrics import hm


@dataclass(frozen=True)
class Cell:
    """One printed cell: percent, or seconds and gigabytes; ``misprints`` holds the values that contradict the rest."""

    table: str
    row: str
    dataset: str
    memory: int | None
    values: dict[str, float]
    misprints: dict[str, float] = field(default_factory=dict)
    printed_row: str | None = None  # the row's name in print, where that is a misprint

    def best(self, metric: str) -> float | None:
        """The value to compare with: what was printed, what must have been meant, or HM of printed base and novel."""
        found = self.misprints.get(metric, self.values.get(metric))
        if found is None and metric == "hm":
            base, novel = self.best("base"), self.best("novel")
            return None if base is None or novel is None else hm(base, novel)
        return found


@cache
def cells() -> tuple[Cell, ...]:
    """Every cell of the appendix's tables."""
    text = resources.files("nocl.experiments.paper").joinpath("results.json").read_text("utf-8")
    return tuple(Cell(**cell) for cell in json.loads(text)["cells"])


def find(table: str | None, row: str, dataset: str, memory: int | None) -> Cell | None:
    """The printed cell, or None where the paper has none.

    >>> find("60+4x10", "DSR", "cifar100", None).values["hm"]
    47.2
    """
    for cell in cells():
        if (cell.table, cell.row, cell.dataset, cell.memory) == (table, row, dataset, memory):
            return cell
    return None
