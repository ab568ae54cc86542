"""Streams of odd data: classes of one image, fewer classes than sessions, empty sessions, no base session."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nocl.arrivals import STREAMS, Disjoint, LongTailed, Plan, PlanError, Positions
from nocl.checks import check_stream
from nocl.data import ImageSet
from nocl.data.features import FeatureData
from nocl.methods import make
from nocl.run import run
from nocl.streams import arrange
from tests.support.small_data import small
from tests.test_arrivals import LABELS, ROWS, UNTIMED, arranged, plans

ODD: dict[str, dict[int, Positions]] = {
    "classes of one image": {label: ROWS[label][:1] for label in range(5)},
    "one class": {3: ROWS[3][:7]},
    "one image": {3: ROWS[3][:1]},
    "unequal classes": {label: ROWS[label][: 1 + 9 * label] for label in range(3)},
}
MANY = {name: ",sessions=7" if hasattr(plan, "sessions") else "" for name, plan in STREAMS.items()}


def features(per_class: int = 2) -> FeatureData:
    """Three classes that are easy to tell apart."""
    images = small(3, per_class=per_class)
    train, test = (
        ImageSet(np.eye(3, dtype=np.float32)[part.labels], part.labels, np.arange(len(part)))
        for part in (images.train, images.test)
    )
    return FeatureData("odd", train, test, images.class_names, source=images, origin={"made": "here"})


@UNTIMED
@given(plans(), st.integers(0, 2**31), st.sampled_from(sorted(ODD)))
def test_every_image_comes_once_or_the_plan_is_refused_with_a_reason(plan: Plan, seed: int, name: str) -> None:
    rows = ODD[name]
    if isinstance(plan, Disjoint) and plan.sessions > len(rows):
        with pytest.raises(PlanError, match=f"at most the {len(rows)} class"):
            arranged(plan, seed, rows)
        return
    sessions = arranged(plan, seed, rows)
    together = np.concatenate(sessions)
    assert len(np.unique(together)) == len(together)
    assert set(together.tolist()) <= set(np.concatenate(list(rows.values())).tolist())
    assert set(LABELS[together].tolist()) == set(rows)  # a long tail leaves one image of each class at least
    if not isinstance(plan, LongTailed):
        assert len(together) == sum(map(len, rows.values()))
    assert len(sessions) == getattr(plan, "sessions", 1)  # some of them may be empty


@pytest.mark.parametrize("name", sorted(set(STREAMS) - {"disjoint"}))
def test_a_run_goes_through_empty_sessions_without_a_base(name: str) -> None:
    stream = arrange(features(), f"{name}:base=0{MANY[name]}", batch_size=1, seed=4)
    sizes = [session.n_images for session in stream]
    assert 3 <= sum(sizes) <= 6  # six; a long tail has fewer
    if "blurry" in name or name == "long_tailed":
        assert 0 in sizes  # three classes cannot fill seven sessions
    learner = make("ncm", backbone="features:3")
    result = run(learner, stream, test_every=2)
    assert result.finished
    assert result.a_last == result.acc == result.worst_class == 1.0
    assert result.anytime is not None
    assert list(result.anytime.images) == list(range(2, sum(sizes) + 1, 2))
    assert 0 < result.a_avg <= 1.0


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_streams_of_odd_data_keep_the_contract(name: str) -> None:
    sessions = ",sessions=2" if MANY[name] else ""
    check_stream(lambda: arrange(small(3, per_class=1), f"{name}:base=0{sessions}", seed=2))


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_one_class_after_the_base_session(name: str) -> None:
    more = {"disjoint": ",sessions=1"}.get(name, "")
    stream = arrange(small(5, per_class=3), f"{name}:base=80{more}", seed=1)
    assert [len(block) for block in stream.blocks[:1]] == [4]
    assert {int(label) for session in stream for _, y in session for label in y} == set(range(5)) - set(
        stream.blocks[0]
    )
