"""Streams beyond disjoint sessions: the numbers of their definitions, and what every one of them keeps."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nocl.arrivals import (
    STREAMS,
    Blurry,
    Disjoint,
    LongTailed,
    Plan,
    PlanError,
    Positions,
    Repeating,
    SiBlurry,
    parse_plan,
    tail_counts,
)
from nocl.checks import check_stream
from nocl.plumbing.registry import UnknownNameError
from nocl.plumbing.seeding import generator
from nocl.streams import StreamConsumedError, arrange, class_incremental, rebuild
from tests.support.small_data import small

UNTIMED = settings(deadline=None, max_examples=60)
LABELS = np.arange(100).repeat(500)  # as CIFAR-100
ROWS = {label: np.flatnonzero(label == LABELS) for label in range(100)}


def arranged(plan: Plan, seed: int = 0, rows: dict[int, Positions] = ROWS) -> list[Positions]:
    return plan.arrange(rows, generator(seed, "stream"))


def counts(sessions: list[Positions]) -> np.ndarray:
    """Images of each class in each session [S, 100]."""
    return np.stack([np.bincount(LABELS[rows], minlength=100) for rows in sessions])


@pytest.mark.parametrize("seed", range(3))
def test_i_blurry_50_10_has_the_published_numbers(seed: int) -> None:
    table = counts(arranged(Blurry(base=0, disjoint=0.5, blur=0.1, sessions=5), seed))
    disjoint = (table > 0).sum(0) == 1
    assert disjoint.sum() == 50
    assert [(table[s, disjoint] == 500).sum() for s in range(5)] == [10] * 5
    blurred = table[:, ~disjoint]
    assert (blurred.max(0) == 450).all()  # 10 % of each class are elsewhere
    assert (np.bincount(blurred.argmax(0), minlength=5) == 10).all()
    assert blurred.sum() - blurred.max(0).sum() == 2500


def test_moved_images_go_to_all_other_sessions_alike() -> None:
    table = counts(arranged(Blurry(base=0, disjoint=0.0, blur=0.5, sessions=5)))
    main = table.argmax(0)
    steps = np.array([table[(main[c] + step) % 5, c] for c in range(100) for step in (1, 2, 3, 4)]).reshape(100, 4)
    assert steps.sum() == 25_000
    assert abs(steps.sum(0) - 6250).max() < 4 * np.sqrt(25_000 * 0.25 * 0.75)  # four standard deviations


def test_si_blurry_has_unequal_sessions_and_the_same_number_of_moved_images() -> None:
    numbers = set()
    for seed in range(20):
        table = counts(arranged(SiBlurry(base=0), seed))
        disjoint = (table > 0).sum(0) == 1
        assert disjoint.sum() == 50
        assert table[:, ~disjoint].sum() - table[:, ~disjoint].max(0).sum() == 2500
        numbers.add(tuple((table[:, disjoint] > 0).sum(1).tolist()))
    assert len(numbers) == 20
    assert any(0 in some for some in numbers)  # a session may have no disjoint class


def test_long_tail_has_the_published_numbers() -> None:
    by_rank = tail_counts(500, 100, 0.01)
    assert (by_rank[0], by_rank[49], by_rank[50], by_rank[99], sum(by_rank)) == (500, 51, 49, 5, 10_899)
    sessions = arranged(LongTailed(base=0, ratio=0.01))
    table = counts(sessions)
    assert sorted(table.sum(0), reverse=True) == by_rank
    assert ((table > 0).sum(0) == 1).all()  # disjoint unless asked for
    ranks = [tuple(counts(arranged(LongTailed(base=0), seed)).sum(0)) for seed in range(5)]
    assert len(set(ranks)) == 5
    blurred = counts(arranged(LongTailed(base=0, ratio=0.5, disjoint=0.0)))
    assert blurred.sum() - blurred.max(0).sum() == sum(round(0.1 * n) for n in tail_counts(500, 100, 0.5))


def test_repeating_classes_bring_new_images_in_sessions_of_one_size() -> None:
    sessions = arranged(Repeating(base=0, sessions=10, p_first=0.3, p_repeat=0.5))
    assert [len(rows) for rows in sessions] == [5000] * 10
    assert len(np.unique(np.concatenate(sessions))) == 50_000
    present = counts(sessions) > 0
    assert abs(present[0].sum() - 30) <= 4 * np.sqrt(100 * 0.3 * 0.7)
    assert (present[1] & present[0]).sum() > 0  # some return
    assert (present[1] & ~present[0]).sum() > 0  # some are new


def test_classes_that_never_return_come_once() -> None:
    rows = {label: ROWS[label][:10] for label in range(8)}
    first, second = arranged(Repeating(base=0, sessions=2, p_first=1.0, p_repeat=0.0), rows=rows)
    assert len(first) == len(second) == 40
    assert set(LABELS[first]) == set(range(8))  # all enter at once; the second session is filled from what is left


def test_shuffled_mixes_and_ordered_does_not() -> None:
    data = small(10, per_class=6)
    for name, changes in (("shuffled", range(15, 60)), ("ordered", range(9, 10))):
        stream = arrange(data, f"{name}:base=0")
        assert not stream.boundaries
        assert len(stream) == 1
        labels = torch.cat([y for _, y in stream.sessions[0]])
        assert int((labels[1:] != labels[:-1]).sum()) in changes
    assert [len(y) for _, y in arrange(data, "ordered:base=60").sessions[0]] == [1] * 24


def plans() -> st.SearchStrategy[Plan]:
    share = st.floats(0, 1)
    base = st.sampled_from([0, 20, 60])
    some = st.integers(2, 4)
    blurred = {"base": base, "sessions": some, "disjoint": share, "blur": share}
    return st.one_of(
        st.builds(Disjoint, base=base, sessions=some),
        st.builds(Blurry, **blurred),
        st.builds(SiBlurry, **blurred),
        st.builds(LongTailed, ratio=st.floats(0.01, 1), **blurred),
        st.builds(Repeating, base=base, sessions=some, p_first=share, p_repeat=share),
        st.builds(STREAMS["shuffled"], base=base),
        st.builds(STREAMS["ordered"], base=base),
    )


@UNTIMED
@given(plans(), st.integers(0, 2**31))
def test_every_image_is_in_one_place_at_most(plan: Plan, seed: int) -> None:
    rows = {label: ROWS[label][: 3 + label] for label in range(12)}  # unequal classes
    sessions = arranged(plan, seed, rows)
    together = np.concatenate(sessions)
    assert len(np.unique(together)) == len(together)
    kept = {label: np.isin(rows[label], together).sum() for label in rows}
    if isinstance(plan, LongTailed):
        wanted = tail_counts(14, 12, plan.ratio)
        assert all(n <= len(rows[label]) for label, n in kept.items())
        assert sum(kept.values()) <= sum(wanted)
        assert min(kept.values()) >= 1
    else:
        assert kept == {label: len(rows[label]) for label in rows}
    again = arranged(plan, seed, rows)
    assert all(np.array_equal(a, b) for a, b in zip(sessions, again, strict=True))
    assert parse_plan(plan.describe()) == plan


@UNTIMED
@given(plans(), st.integers(0, 2**31))
def test_shares_and_class_counts_are_as_defined(plan: Plan, seed: int) -> None:
    rows = {label: ROWS[label][:20] for label in range(12)}
    table = counts(arranged(plan, seed, rows))[:, :12]
    if isinstance(plan, Disjoint):
        assert ((table > 0).sum(0) == 1).all()
        per_session = (table > 0).sum(1)
        assert per_session.max() - per_session.min() <= 1
    elif isinstance(plan, Blurry) and not isinstance(plan, LongTailed):
        in_one = ((table > 0).sum(0) == 1).sum()
        assert in_one >= round(plan.disjoint * 12)
        # in its main session a blurred class keeps 20 - round(20 blur), whatever session that is
        stays = 20 - round(20 * plan.blur)
        assert ((table == 20).any(0) | (table == stays).any(0)).all()
    elif isinstance(plan, Repeating):
        assert table.sum(1).max() - table.sum(1).min() <= 1


@pytest.mark.parametrize("base", [0, 60])
@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_keeps_the_contract(name: str, base: int) -> None:
    data = small(20, per_class=4)
    made = check_stream(lambda: arrange(data, f"{name}:base={base}", batch_size=3, order_seed=1, seed=5))
    assert "every_image_once" in made


@pytest.mark.parametrize("text", [*STREAMS, "0+50x2", "60+20x2"])
def test_a_description_is_enough_to_build_the_stream_again(text: str) -> None:
    data = small(20)
    plain = "+" in text
    first = class_incremental(data, partition=text, order_seed=3) if plain else arrange(data, text, seed=7)
    again = rebuild(data, first.describe())
    assert again.describe() == first.describe()
    for one, other in zip(_labels(first), _labels(again), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="fingerprint"):
        rebuild(small(10), first.describe())


def _labels(stream: object) -> Iterator[torch.Tensor]:
    for session in stream:  # type: ignore[attr-defined]
        yield from (y for _, y in session)


def test_seed_changes_the_stream_and_not_the_base_session() -> None:
    data = small(20, per_class=5)
    streams = [arrange(data, "si_blurry:base=60", order_seed=2, seed=seed) for seed in (0, 1)]
    assert (
        streams[0].base.classes
        == streams[1].base.classes
        == class_incremental(data, order_seed=2, partition="60+20x2").base.classes
    )
    assert streams[0].base.describe() == streams[1].base.describe()
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(streams[0].base.epoch(0), streams[1].base.epoch(0)))
    first, second = (torch.cat(list(_labels(stream))) for stream in streams)
    assert not torch.equal(first, second)


def test_second_pass_over_a_blurred_session_is_refused() -> None:
    session = arrange(small(10), "blurry:base=0").sessions[0]
    list(session)
    with pytest.raises(StreamConsumedError):
        iter(session)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("blury", UnknownNameError, "did you mean 'blurry'"),
        ("blurry:sessons=3", UnknownNameError, "did you mean 'sessions'"),
        ("blurry:sessions=many", PlanError, "sessions must be a whole number, not 'many'"),
        ("blurry:sessions=", PlanError, "not '', as in blurry:sessions=5"),
        ("blurry:sessions=3,sessions=4", PlanError, "sessions is there twice"),
        ("blurry:sessions=1", PlanError, "sessions must be 2 or more"),
        ("blurry:blur=1.5", PlanError, "blur must be a share from 0 to 1, not 1.5"),
        ("long_tailed:ratio=0", PlanError, "ratio must be above 0"),
        ("shuffled:base=100", PlanError, "base must be a percentage from 0 to 99"),
        ("disjoint:sessions=0", PlanError, "sessions must be 1 or more"),
        ("disjoint:sessions=9", PlanError, "at most the 4 classes there are"),
        ("ordered:base=55", PlanError, "55 % of 10 classes is 5.5"),
        ("blurry:blur=nan", PlanError, "blur must be a share"),
    ],
)
def test_a_bad_plan_says_why(text: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        arrange(small(10), text)
