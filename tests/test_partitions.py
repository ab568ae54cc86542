"""Partition maths for any number of classes, and the streams of all data sets under all four partitions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nocl.checks import check_stream
from nocl.data import Dataset, ImageSet, load
from nocl.streams import PARTITIONS, PartitionError, class_incremental, parse_partition
from tests.support.data_layouts import (
    write_cifar100,
    write_core50,
    write_core50_lists,
    write_folder,
    write_mini_folders,
    write_mini_lists,
    write_mini_pickles,
)

UNTIMED = settings(deadline=None)  # a busy machine is no failure
PAPER = {
    "60+4x10": (60, 4, 10),
    "40+6x10": (40, 6, 10),
    "80+2x10": (80, 2, 10),
    "60+2x20": (60, 2, 20),
}


def blank(n_classes: int) -> Dataset:
    """One pixel a class, for questions about classes alone."""
    images = ImageSet.of(np.arange(n_classes * 3, dtype=np.uint8).reshape(-1, 3, 1, 1), range(n_classes))
    return Dataset("blank", images, images, tuple(map(str, range(n_classes))))


@pytest.mark.parametrize("partition", PAPER)
def test_the_papers_partitions_have_the_papers_sizes(partition: str) -> None:
    assert set(PARTITIONS) == set(PAPER)
    base, each, sessions = PAPER[partition]
    assert parse_partition(partition, 100) == [base] + [each] * sessions
    assert parse_partition(partition, 50) == [base // 2] + [each // 2] * sessions


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int, int]:
    """Percentages that add up to a hundred."""
    each = draw(st.integers(1, 99))
    sessions = draw(st.integers(1, 99 // each))
    return 100 - each * sessions, each, sessions


@UNTIMED
@given(partitions(), st.integers(1, 12))
def test_sizes_are_the_percentages_of_every_multiple_of_a_hundred(parts: tuple[int, int, int], times: int) -> None:
    base, each, sessions = parts
    sizes = parse_partition(f"{base}+{each}x{sessions}", 100 * times)
    assert sizes == [base * times] + [each * times] * sessions
    assert sum(sizes) == 100 * times


@UNTIMED
@given(partitions(), st.integers(2, 400))
def test_sizes_add_up_or_the_partition_is_refused(parts: tuple[int, int, int], n_classes: int) -> None:
    base, each, sessions = parts
    try:
        sizes = parse_partition(f"{base}+{each}x{sessions}", n_classes)
    except PartitionError:
        assert base * n_classes % 100 or each * n_classes % 100
    else:
        assert sum(sizes) == n_classes
        assert len(sizes) == sessions + 1
        assert min(sizes) >= 1
        assert [size * 100 for size in sizes] == [base * n_classes] + [each * n_classes] * sessions


@UNTIMED
@example(100, 0, 0)
@given(st.integers(0, 120), st.integers(0, 120), st.integers(0, 120))
def test_what_does_not_add_up_to_a_hundred_is_refused(base: int, each: int, sessions: int) -> None:
    joint = (base, each, sessions) == (100, 0, 0)  # no session at all: the bound of joint training
    if joint or (base + each * sessions == 100 and min(each, sessions) >= 1):
        assert sum(parse_partition(f"{base}+{each}x{sessions}", 100)) == 100
    else:
        with pytest.raises(PartitionError):
            parse_partition(f"{base}+{each}x{sessions}", 100)


@UNTIMED
@given(st.text(alphabet="0123456789+x-. ", max_size=9))
def test_any_text_gives_sizes_or_a_partition_error(text: str) -> None:
    message = ""
    try:
        sizes = parse_partition(text, 100)
    except PartitionError as error:
        message = str(error)
    assert repr(text) in message or sum(sizes) == 100


@UNTIMED
@given(st.sampled_from(PARTITIONS), st.sampled_from([50, 100, 200]), st.integers(0, 2**31))
def test_blocks_are_every_class_once_in_the_order_of_the_seed(partition: str, n_classes: int, seed: int) -> None:
    data = blank(n_classes)
    stream, again = (class_incremental(data, partition=partition, order_seed=seed) for _ in range(2))
    assert stream.blocks == again.blocks
    assert sorted(label for block in stream.blocks for label in block) == list(range(n_classes))
    assert [len(block) for block in stream.blocks] == parse_partition(partition, n_classes)


def test_orders_of_two_seeds_differ() -> None:
    assert len({class_incremental(blank(100), order_seed=seed).blocks for seed in range(20)}) == 20


def _core50_with_lists(root: Path) -> None:
    write_core50_lists(root, write_core50(root, frames=1), test_session=3)


LAYOUTS: dict[str, tuple[str, Callable[[Path], object], dict[str, object]]] = {
    "glyphs": ("glyphs", lambda _: None, {"train_per_class": 3, "test_per_class": 1, "size": 16}),
    "cifar100": ("cifar100", lambda root: write_cifar100(root, 100), {}),
    "mini pickles": ("mini_imagenet", write_mini_pickles, {}),
    "mini lists": ("mini_imagenet", write_mini_lists, {}),
    "mini folders": ("mini_imagenet", lambda root: write_mini_folders(root, train=2), {}),
    "core50": ("core50", lambda root: write_core50(root, frames=1), {}),
    "core50 lists": ("core50", _core50_with_lists, {}),
    "folder": ("folder", lambda root: write_folder(root, {f"c{i:03d}": 3 for i in range(100)}), {"size": 8}),
    "folder of 50": ("folder", lambda root: write_folder(root, {f"c{i:02d}": 3 for i in range(50)}), {"size": 8}),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small data set in one of the public layouts."""
    name, write, options = LAYOUTS[request.param]
    root = tmp_path_factory.mktemp(request.param.replace(" ", "_"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOCL_CACHE", str(tmp_path_factory.mktemp("cache")))
        write(root / "set")
        return load(name, root=root / "set", **options)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_streams_of_every_data_set_keep_the_contract(dataset: Dataset, partition: str) -> None:
    assert check_stream(lambda: class_incremental(dataset, partition=partition, batch_size=4, base_batch_size=7))
    stream = class_incremental(dataset, partition=partition)
    smallest = min(len(block) for block in stream.blocks)
    assert smallest == int(partition.split("+")[1].split("x")[0]) * dataset.n_classes // 100
