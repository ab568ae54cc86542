"""Streams: partitions, class order, one pass."""

import pytest
import torch

from nocl.checks import check_stream
from nocl.data import Dataset
from nocl.streams import PartitionError, Stream, StreamConsumedError, class_incremental, parse_partition
from tests.support.small_data import small


@pytest.mark.parametrize("partition", ["60+4x10", "40+6x10", "80+2x10", "60+2x20"])
@pytest.mark.parametrize("n_classes", [100, 50])
def test_streams_keep_the_contract(partition: str, n_classes: int) -> None:
    data = small(n_classes)
    if n_classes == 50 and partition == "40+6x10":
        assert parse_partition(partition, 50) == [20] + [3] * 10
    check_stream(lambda: class_incremental(data, partition=partition, batch_size=4))


def test_class_order_is_the_documented_permutation() -> None:
    stream = class_incremental(small(100), order_seed=0)
    assert stream.blocks[0][:6] == (44, 19, 93, 90, 71, 69)
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(3)).tolist()
    other = class_incremental(small(100), order_seed=3)
    assert [label for block in other.blocks for label in block] == expected


def test_second_pass_over_a_session_is_refused() -> None:
    session = class_incremental(small(10), partition="60+20x2").sessions[0]
    next(iter(session))
    with pytest.raises(StreamConsumedError, match="session 1"):
        iter(session)


def test_last_short_batch_is_delivered_unless_dropped() -> None:
    def sizes(stream: Stream) -> list[int]:
        return [len(y) for _, y in stream.sessions[0]]

    assert sizes(class_incremental(small(10), partition="60+20x2", batch_size=4)) == [4, 2]
    assert sizes(class_incremental(small(10), partition="60+20x2", batch_size=4, drop_last=True)) == [4]


def test_base_epochs_differ_and_repeat_by_index() -> None:
    base = class_incremental(small(10), partition="60+20x2").base
    first, second = torch.cat([y for _, y in base.epoch(0)]), torch.cat([y for _, y in base.epoch(1)])
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat([y for _, y in base.epoch(0)]))


@pytest.mark.parametrize(
    ("text", "n", "reason"),
    [
        ("60+4x10", 30, "4 % of 30 classes"),
        ("60-4x10", 100, "BASE\\+EACHxSESSIONS"),
        ("60+4x9", 100, "= 96 %"),
        ("100+0x0x", 100, "BASE"),
        ("50+0x10", 100, "at least 1"),
    ],
)
def test_partition_that_does_not_fit_says_why(text: str, n: int, reason: str) -> None:
    with pytest.raises(PartitionError, match=reason):
        parse_partition(text, n)


def test_partitions_of_fifty_classes_may_have_sessions_of_one() -> None:
    assert parse_partition("80+2x10", 50) == [40] + [1] * 10
    assert parse_partition("60+2x20", 50) == [30] + [1] * 20


def test_joint_partition_has_no_sessions() -> None:
    stream = class_incremental(small(10), partition="100+0x0")
    assert len(stream.blocks[0]) == 10
    assert len(stream) == 0


def test_class_without_test_images_is_refused_by_name() -> None:
    whole = small(10)
    data = Dataset("holes", whole.train, whole.test.where(range(9)), whole.class_names)
    with pytest.raises(ValueError, match=r"1 classes have no test images \(9\)"):
        class_incremental(data, partition="60+20x2")
