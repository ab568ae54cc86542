"""Paired tests of two methods."""

import pytest
from scipy import stats

from nocl.experiments.report.paired import paired
from tests.support.paper_cases import dsr


def test_paired_test_by_scipy_on_common_orders_only() -> None:
    first = [dsr(acc, order) for order, acc in enumerate((0.50, 0.52, 0.55, 0.9))]
    second = [dsr(acc, order) for order, acc in enumerate((0.48, 0.51, 0.50))]
    found = paired(first, [*second, dsr(0.4, 7)])
    differences = [0.02, 0.01, 0.05]
    assert found.orders == 3
    assert found.mean == pytest.approx(sum(differences) / 3)
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert found.p_wilcoxon is None
    assert paired(second, first).mean == pytest.approx(-found.mean)
    assert "p = " in found.sentence("a", "b")


def test_paired_test_without_spread_or_pairs() -> None:
    one = [dsr(0.5, 0), dsr(0.6, 1)]
    assert paired(one, one).p is None
    assert "one observation" in paired(one, [dsr(0.4, 0), dsr(0.5001, 1)]).sentence("a", "b")
    assert paired(one[:1], one[:1]).p is None
    assert "a test needs two" in paired(one[:1], one[:1]).sentence("a", "b")
    with pytest.raises(ValueError, match="no class order"):
        paired(one[:1], one[1:])
    repeated = paired([dsr(0.4, 0), dsr(0.6, 0), dsr(0.6, 1)], one)  # a repeated order is no further draw
    assert (repeated.orders, repeated.mean) == (2, pytest.approx(0.0))
