"""Streams on a given network: its classes are the base classes, and leaks are refused or counted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nocl import nets
from nocl.experiments.job import Job
from nocl.experiments.on_network import stream_on_network
from nocl.experiments.report.summary import summarise
from nocl.plumbing.files import write_tensors
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.streams import class_incremental
from tests.support.given_network import ORDER, PARTITION, tiny


def test_order_zero_is_the_usual_stream_and_others_permute_the_novel_classes() -> None:
    usual = class_incremental(tiny(), partition=PARTITION, order_seed=0)
    streams = [stream_on_network(tiny(), ORDER[:6], partition=PARTITION, order_seed=order) for order in range(6)]
    assert streams[0].blocks == usual.blocks
    assert torch.equal(next(iter(streams[0].sessions[0])).x, next(iter(usual.sessions[0])).x)
    assert {each.blocks[0] for each in streams} == {tuple(ORDER[:6])}
    assert len({each.blocks for each in streams}) >= 4  # of 24 permutations
    assert len({json.dumps(each.base.describe()) for each in streams}) == 1  # orders share the base session
    for each in streams:
        assert sorted(label for block in each.blocks for label in block) == list(range(10))
        assert marks(each.describe()) == (0, 0)


def test_a_network_of_another_seeds_classes_takes_that_seeds_order_whole() -> None:
    usual = class_incremental(tiny(), partition=PARTITION, order_seed=5)
    own = stream_on_network(tiny(), usual.blocks[0], partition=PARTITION, order_seed=5)
    assert own.blocks == usual.blocks
    other = stream_on_network(tiny(), usual.blocks[0], partition=PARTITION, order_seed=1)
    assert other.blocks[0] == usual.blocks[0]
    assert other.blocks[1:] != usual.blocks[1:]


def test_a_foreign_order_is_the_seeds_own_and_its_leak_is_refused_unless_allowed(like: Job) -> None:
    foreign = replace(like, order_seed=1, foreign_order=True)
    usual = class_incremental(tiny(), partition=PARTITION, order_seed=1)
    leaked = len(set(ORDER[:6]) - set(usual.blocks[0]))
    assert leaked
    with pytest.raises(
        WrongBaseError, match=f"{leaked} of them would come again as novel; give each class order a net"
    ):
        foreign.stream()
    allowed = replace(foreign, allow_leak=True)
    assert allowed.stream().blocks == usual.blocks
    assert allowed.digest() != replace(allowed, foreign_order=False).digest()
    found = allowed.run()
    assert marks(found.stream) == (leaked, leaked)
    assert found.stream["foreign_order"] is True
    assert f"LEAK: the network was trained on {leaked} of the novel classes" in summarise([found])[0].note


def marks(about: dict[str, JSON]) -> tuple[JSON, JSON]:
    return about["novel_classes_in_network"], about["base_classes_not_in_network"]


def test_a_leak_is_refused_unless_allowed_and_then_counted(like: Job) -> None:
    with pytest.raises(WrongBaseError, match="2 of them would come again as novel"):
        replace(like, partition="40+20x3").stream()
    leaking = replace(like, partition="40+20x3", allow_leak=True)
    stream = leaking.stream()
    assert marks(stream.describe()) == (2, 0)
    assert set(stream.blocks[0]) == set(ORDER[:4])
    assert leaking.run().stream["novel_classes_in_network"] == 2
    larger = replace(like, partition="80+10x2", order_seed=3).stream()
    assert marks(larger.describe()) == (0, 2)
    assert set(ORDER[:6]) < set(larger.blocks[0])


def test_network_that_does_not_say_its_classes_takes_the_usual_ones(like: Job, tmp_path: Path) -> None:
    path = tmp_path / "silent.safetensors"
    write_tensors(path, nets.build("tiny_resnet18", seed=3).state_dict(), {})
    stream = replace(like, network_from=str(path)).stream()
    assert stream.blocks[0] == tuple(ORDER[:6])
    assert marks(stream.describe()) == (0, 0)
