"""Packaged networks."""

from pathlib import Path

import torch

from nocl import nets
from nocl.app import weights
from nocl.app.weights.__main__ import pack
from nocl.plumbing.files import read_tensors
from nocl.pretrain import load_weights


def test_packaged_network_loads_and_says_what_it_was_trained_on() -> None:
    network = nets.build("reduced_resnet18")
    before = network.conv1.weight.clone()  # type: ignore[union-attr,operator]
    load_weights(network, weights.file("cifar100"))
    assert not torch.equal(before, network.conv1.weight)  # type: ignore[arg-type]
    assert float(network.std.max()) < 0.5  # it brings its own normalisation
    _, header = read_tensors(weights.file("cifar100"))
    assert isinstance(header["classes"], list)
    assert sorted(header["classes"]) == list(range(100))  # type: ignore[type-var]
    assert header["recipe"]


def test_packing_keeps_the_backbone_alone(tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    pack(weights.file("cifar100"), again)
    whole, _ = read_tensors(weights.file("cifar100"))
    tensors, header = read_tensors(again)
    assert tensors.keys() == nets.build("reduced_resnet18").state_dict().keys()
    assert all(torch.equal(tensors[name], whole[name]) for name in tensors)
    assert header["made_of"] == "cifar100.safetensors"
