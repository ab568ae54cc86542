"""Two methods on the same class orders: is their difference significant?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nocl.experiments.report.summary import estimate, text
from nocl.results import RunResult

FOR_WILCOXON = 6  # with fewer pairs the signed-rank test cannot reach 5 %
_ROUNDING = 3e-4  # of accuracies from 0 to 1: orders that differ by less are one observation


@dataclass(frozen=True)
class Paired:
    """Mean difference first minus second over class orders, its 95 % interval, and two-sided p values."""

    orders: int
    mean: float
    half: float | None  # None like p
    p: float | None  # Student's t for pairs; None for fewer than two orders, or if the order changes nothing
    p_wilcoxon: float | None

    def sentence(self, first: str, second: str) -> str:
        """The test in words, in points."""
        spread = "" if self.half is None else f" ± {100 * self.half:.2f}"
        words = f"{first} - {second}: {100 * self.mean:+.2f}{spread} points over {self.orders} class orders"
        if self.orders < 2:
            return words + "; a test needs two"
        if self.p is None:
            return words + "; the order does not change it, so they are one observation and no test"
        rank = "" if self.p_wilcoxon is None else f", p = {self.p_wilcoxon:.3g} (Wilcoxon)"
        return words + f", p = {self.p:.3g} (paired t){rank}"


def paired(
    results_a: Sequence[RunResult],
    results_b: Sequence[RunResult],
    read: Callable[[RunResult], float | None] = lambda run: run.acc,
) -> Paired:
    """Compare finished runs on the orders that both have; runs that repeat an order are averaged first.

    ``read`` takes the number from a run, by default Acc. Results of different data sets, partitions or classes never
    make a pair.
    """
    first, second = _by_order(results_a, read), _by_order(results_b, read)
    orders = sorted(first.keys() & second.keys())
    if not orders:
        raise ValueError("no class order was run with both methods; run them with the same seeds or orders")
    differences = [first[order] - second[order] for order in orders]
    found = estimate(differences)
    half = None if _all_alike(differences) else found.half
    return Paired(len(orders), found.mean, half, _p(differences), _p_wilcoxon(differences))


def _by_order(results: Sequence[RunResult], read: Callable[[RunResult], float | None]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for run in results:
        value = read(run)
        if run.finished and value is not None:
            key = text(
                [run.stream.get("dataset"), run.stream.get("fingerprint"), [list(c) for c in run.session_classes]]
            )
            values.setdefault(key, []).append(value)
    return {key: math.fsum(some) / len(some) for key, some in values.items()}


def _p(differences: Sequence[float]) -> float | None:
    if len(differences) < 2 or _all_alike(differences):
        return None
    from scipy import stats  # slow to import, and few commands test

    return float(stats.ttest_rel(differences, [0.0] * len(differences)).pvalue)


def _all_alike(differences: Sequence[float]) -> bool:
    """Whether they differ by rounding alone."""
    return max(differences) - min(differences) <= _ROUNDING


def _p_wilcoxon(differences: Sequence[float]) -> float | None:
    if len(differences) < FOR_WILCOXON or _all_alike(differences):
        return None
    from scipy import stats

    return float(stats.wilcoxon(differences).pvalue)
