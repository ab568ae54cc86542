"""Metrics against numbers worked out by hand, the paper's own cells, and what must hold for any run."""

import copy
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nocl import metrics
from nocl.plumbing.types import Batch
from tests.support.replay_cases import cases

SIZES = (6, 2, 2)
MATRIX = [
    [0.9, None, None],
    [0.8, 0.6, None],
    [0.7, 0.2, 0.8],
]
share = st.floats(0, 1)


def test_acc_weighs_every_class_the_same() -> None:
    # (6 * 0.7 + 2 * 0.2 + 2 * 0.8) / 10 = (4.2 + 0.4 + 1.6) / 10
    assert metrics.acc(MATRIX[2], SIZES) == pytest.approx(0.62)
    # (6 * 0.8 + 2 * 0.6) / 8
    assert metrics.acc(MATRIX[1], SIZES) == pytest.approx(0.75)


def test_acc_by_session_weighs_every_session_the_same() -> None:
    assert metrics.acc(MATRIX[2], SIZES, "session") == pytest.approx(1.7 / 3)


def test_unseen_sessions_do_not_count_as_zero() -> None:
    assert metrics.acc(MATRIX[0], SIZES) == pytest.approx(0.9)
    assert metrics.acc((0.9,), SIZES) == pytest.approx(0.9)


def test_base_and_novel_are_the_two_parts_of_acc() -> None:
    assert metrics.base(MATRIX[2]) == 0.7
    assert metrics.novel(MATRIX[2], SIZES) == pytest.approx(0.5)
    assert metrics.novel([0.5, 0.2, 0.8], (6, 1, 3)) == pytest.approx((0.2 + 3 * 0.8) / 4)


def test_before_the_first_novel_class_novel_and_hm_are_none() -> None:
    assert metrics.scores(MATRIX[0], SIZES) == metrics.Scores(0.9, 0.9, None, None)


def test_hm_by_hand() -> None:
    assert metrics.hm(0.75, 0.5) == pytest.approx(0.6)
    assert metrics.hm(0.0, 0.0) == 0
    assert metrics.hm(0.4, 0.0) == 0


@pytest.mark.parametrize(
    ("base", "novel", "share_of_base", "acc", "hm"),
    [
        (52.4, 42.9, 60, 48.60, 47.18),
        (56.1, 42.6, 60, 50.70, 48.43),
        (43.8, 35.2, 40, 38.64, 39.03),
        (53.8, 42.1, 60, 49.12, 47.24),
    ],
)
def test_the_cells_the_paper_prints(base: float, novel: float, share_of_base: int, acc: float, hm: float) -> None:
    row, sizes = (base, novel), (share_of_base, 100 - share_of_base)
    assert round(metrics.acc(row, sizes), 2) == acc
    assert round(metrics.hm(base, novel), 2) == hm


def test_fifty_classes_give_the_same_acc_as_a_hundred() -> None:
    assert metrics.acc((0.8, 0.4), (30, 20)) == pytest.approx(metrics.acc((0.8, 0.4), (60, 40)))


def test_a_run_of_twenty_one_sessions_with_one_class_each() -> None:
    row = [0.5] + [0.25] * 20
    assert metrics.scores(row, [30] + [1] * 20) == metrics.Scores(
        pytest.approx(0.4), 0.5, pytest.approx(0.25), pytest.approx(1 / 3)
    )


def test_average_over_sessions_by_hand() -> None:
    assert metrics.average(MATRIX, SIZES) == pytest.approx((0.9 + 0.75 + 0.62) / 3)
    assert metrics.average(MATRIX, SIZES, "session") == pytest.approx((0.9 + 0.7 + 1.7 / 3) / 3)


def test_curve_ends_with_last() -> None:
    curve = metrics.curve(MATRIX, SIZES)
    assert [round(point.acc, 10) for point in curve] == [0.9, 0.75, 0.62]
    assert curve[-1] == metrics.last(MATRIX, SIZES)


def test_forgetting_by_hand_leaves_out_the_last_session() -> None:
    # base: best 0.9, last 0.7, drop 0.2 over 6 classes; session 1: 0.6 -> 0.2, drop 0.4 over 2 classes
    assert metrics.forgetting(MATRIX, SIZES) == pytest.approx((6 * 0.2 + 2 * 0.4) / 8)
    assert metrics.forgetting(MATRIX, SIZES, "session") == pytest.approx(0.3)


def test_forgetting_is_measured_from_the_best_not_from_the_first() -> None:
    matrix = [[0.5, None, None], [0.9, 0.6, None], [0.4, 0.6, 0.1]]
    assert metrics.forgetting(matrix, (1, 1, 1)) == pytest.approx((0.5 + 0.0) / 2)


def test_forgetting_is_negative_when_classes_improve() -> None:
    assert metrics.forgetting([[0.5, None], [0.7, 0.0]], (3, 1)) == pytest.approx(-0.2)


def test_forgetting_is_none_when_nothing_was_learned_before() -> None:
    assert metrics.forgetting([[0.5, None]], (3, 1)) is None


def test_forgetting_is_zero_when_nothing_changes() -> None:
    assert metrics.forgetting([[0.5, None, None], [0.5, 0.2, None], [0.5, 0.2, 0.9]], (3, 1, 1)) == 0


def test_session_means_by_hand() -> None:
    assert metrics.session_means([0.2, 0.4, 0.9, None], (2, 1, 1)) == (pytest.approx(0.3), 0.9, None)


def test_inputs_are_never_edited() -> None:
    matrix = copy.deepcopy(MATRIX)
    metrics.curve(matrix, SIZES)
    metrics.average(matrix, SIZES)
    metrics.forgetting(matrix, SIZES)
    assert matrix == MATRIX


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.acc([0.5, None, 0.5], SIZES), "in order"),
        (lambda: metrics.acc([None, 0.5], SIZES), "in order"),
        (lambda: metrics.acc([0.5] * 4, SIZES), "4 sessions"),
        (lambda: metrics.acc([0.5, 0.5], (3, 0)), "at least one class"),
        (lambda: metrics.acc([0.5], SIZES, "image"), "'image' is not known"),  # type: ignore[arg-type]
        (lambda: metrics.last([], SIZES), "no rows"),
        (lambda: metrics.average([], SIZES), "no rows"),
        (lambda: metrics.base([None]), "base session"),
        (lambda: metrics.hm(-0.1, 0.5), "-0.1"),
        (lambda: metrics.session_means([0.5], (2,)), "1 class accuracies"),
        (lambda: metrics.session_means([0.5, None], (2,)), "only some"),
    ],
)
def test_impossible_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


@given(share)
def test_hm_of_equals_is_the_same(a: float) -> None:
    assert metrics.hm(a, a) == pytest.approx(a)


@given(share, share)
def test_hm_lies_between_and_below_the_mean(a: float, b: float) -> None:
    value = metrics.hm(a, b)
    assert min(a, b) - 1e-12 <= value <= (a + b) / 2 + 1e-12
    assert value == pytest.approx(metrics.hm(b, a))


@given(share)
def test_hm_with_zero_is_zero(a: float) -> None:
    assert metrics.hm(a, 0.0) == metrics.hm(0.0, a) == 0


@given(st.integers(1, 20), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_macro_equals_micro_on_balanced_test_sets(images: int, sizes: list[int], data: st.DataObject) -> None:
    right = data.draw(st.lists(st.integers(0, images), min_size=sum(sizes), max_size=sum(sizes)))
    row = metrics.session_means([count / images for count in right], sizes)
    assert metrics.acc(row, sizes) == pytest.approx(sum(right) / (images * sum(sizes)))


@given(st.lists(st.tuples(share, st.integers(1, 50)), min_size=2, max_size=8))
def test_acc_is_the_weighted_mean_of_base_and_novel(cells: list[tuple[float, int]]) -> None:
    row, sizes = [value for value, _ in cells], [size for _, size in cells]
    novel = metrics.novel(row, sizes)
    assert novel is not None
    expected = (sizes[0] * row[0] + sum(sizes[1:]) * novel) / sum(sizes)
    assert metrics.acc(row, sizes) == pytest.approx(expected)


@given(st.lists(share, min_size=2, max_size=6), share)
def test_forgetting_ignores_how_well_the_last_session_was_learned(values: list[float], fresh: float) -> None:
    count = len(values)
    matrix: list[list[float | None]] = [
        [values[(t + s) % count] if s <= t else None for s in range(count)] for t in range(count)
    ]
    before = metrics.forgetting(matrix, [1] * count)
    matrix[-1][-1] = fresh
    assert metrics.forgetting(matrix, [1] * count) == before


def test_a_session_that_brings_no_class_counts_nowhere() -> None:
    sizes = (3, 0, 1)
    assert metrics.scores([0.5, None, 0.9], sizes) == metrics.Scores(0.6, 0.5, 0.9, metrics.hm(0.5, 0.9))
    matrix = [[0.8, None, None], [0.7, None, None], [0.5, None, 0.9]]
    assert metrics.forgetting(matrix, sizes) == pytest.approx(0.3)
    assert metrics.average(matrix, sizes) == pytest.approx((0.8 + 0.7 + 0.6) / 3)


def test_without_a_base_session_there_is_no_base_accuracy() -> None:
    sizes = (0, 2, 2)
    matrix = [[None] * 3, [None, 0.5, None], [None, 0.25, 0.75]]
    assert metrics.curve(matrix, sizes) == ((None,) * 4, (0.5, None, 0.5, None), (0.5, None, 0.5, None))
    assert metrics.average(matrix, sizes) == 0.5
    assert metrics.forgetting(matrix, sizes) == 0.25


def test_class_forgetting_by_hand() -> None:
    rows = [(0.5, None, None), (0.75, 0.5, None), (0.25, 0.75, 1.0)]
    assert metrics.class_forgetting(rows) == pytest.approx((0.5 - 0.25) / 2)  # the last class has no earlier test
    assert metrics.class_forgetting(rows[:1]) is None


class Knows:
    """Answers rightly for the labels it knows, else with -1; images hold their label."""

    def __init__(self, *labels: int) -> None:
        self.labels = torch.tensor(labels)

    def predict(self, x: Tensor) -> Tensor:
        return torch.where(torch.isin(x, self.labels), x, -1)


class Labels:
    """Two test images of each label, which are their labels."""

    def __init__(self, labels: Collection[int]) -> None:
        self.y = torch.tensor(sorted(labels)).repeat_interleave(2)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        for y in self.y.split(batch_size):
            yield Batch(y, y)


def test_exam_tests_on_the_classes_met_whenever_it_is_time() -> None:
    session = SimpleNamespace(n_images=7)
    stream = SimpleNamespace(blocks=[(0,), (1, 2), (3,)], sessions=[session, session], test_images=Labels)
    exam = metrics.Exam(Knows(0, 2), stream, 1, None, every=3, batch_size=4)
    for labels in ([1, 1], [2, 1], [2, 2, 2]):  # 2, 4, 7 images
        exam.after(torch.tensor(labels))
    assert exam.found is not None
    assert exam.found.images == (4, 7)
    assert exam.found.accuracy == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert exam.found.class_accuracy == ((1.0, 0.0, 1.0, None),) * 2
    second = metrics.Exam(Knows(0, 1, 2), stream, 2, exam.found, every=3, batch_size=4)
    second.after(torch.tensor([3]))  # the eighth image: not yet time
    second.after(torch.tensor([3]))
    assert second.found is not None
    assert second.found.images == (4, 7, 9)
    assert second.found.accuracy[2] == 0.75
    assert second.found.area == pytest.approx((2 / 3 + 2 / 3 + 0.75) / 3)
    assert second.seconds > 0


def test_exam_that_is_never_due_finds_nothing() -> None:
    exam = metrics.Exam(Knows(0), SimpleNamespace(blocks=[(0,)], sessions=[]), 1, None, every=0, batch_size=4)
    exam.after(torch.tensor([0, 0]))
    assert exam.found is None


@cases("metrics_")
def test_metrics(case: dict[str, Any]) -> None:
    """Of accuracies the reference agrees; its forgetting counts rows before a task was learned, ours does not."""
    runs = case["inputs"]["acc"]
    ones = [1] * len(runs[0])
    seen = [[[a if j <= i else None for j, a in enumerate(row)] for i, row in enumerate(run)] for run in runs]
    ends = [metrics.acc(run[-1], ones, "session") for run in seen]
    averages = [metrics.average(run, ones, "session") for run in seen]
    assert sum(ends) / len(ends) == pytest.approx(case["outputs"]["avg_end_acc"][0], abs=1e-12)
    assert sum(averages) / len(averages) == pytest.approx(case["outputs"]["avg_acc"][0], abs=1e-12)
    forgotten = [metrics.forgetting(run, ones, "session") for run in seen]
    assert forgotten == pytest.approx(case["corrected"]["usual_forgetting_per_run"], abs=1e-12)
