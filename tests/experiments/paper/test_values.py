"""The printed values of the paper."""

import pytest

from nocl.experiments.paper import values as paper
from nocl.experiments.paper.comparison import lines, table_of
from nocl.experiments.paper.tables import chosen_rows, find
from nocl.metrics import hm


def test_printed_numbers_agree_with_each_other_except_known_misprints() -> None:
    found = {}
    for cell in paper.cells():
        if "+" not in cell.table:
            continue
        base, novel = cell.values["base"], cell.values["novel"]
        share = int(cell.table.partition("+")[0]) / 100
        implied = {"acc": share * base + (1 - share) * novel, "hm": hm(base, novel)}
        off = {name: value for name, value in implied.items() if abs(value - cell.values[name]) > 0.16}
        assert off.keys() == cell.misprints.keys(), cell
        for name, value in off.items():
            assert cell.misprints[name] == pytest.approx(value, abs=0.006)
        found |= {(cell.table, cell.row, cell.dataset, cell.memory): off} if off else {}
    assert len(found) == 7
    assert len(paper.cells()) == 165


def test_misprints_are_marked_and_replaced() -> None:
    experiment = find("partition-80-2-10")
    text = table_of(experiment, lines(experiment, [], chosen_rows(experiment, ["scr_ft"]))).markdown()
    assert "42.7\\* (45.2/32.8) \\| 38.0" in text
    assert "49.7 (53.7/33.7) \\| 41.4\\*" in text
