"""The joint linear probe."""

import torch

from nocl.experiments.linear_probe import linear_probe
from tests.support.feature_nets import blobs


def test_probe_is_a_minimum_and_separates_what_can_be_separated() -> None:
    z, y = blobs(4, 60, 6, spread=0.2)
    probe = linear_probe(z.float(), y, 4, iterations=300)
    assert (probe.score(z.float()).argmax(1) == y).all()

    def loss(weight: torch.Tensor) -> float:
        standard = (z.float() - probe.mean) / probe.std
        entropy = torch.nn.functional.cross_entropy(standard @ weight.T + probe.bias, y)
        return float(entropy + probe.penalty / 2 * weight.square().sum())

    here = loss(probe.weight)
    for seed in range(5):
        step = 0.05 * torch.randn(probe.weight.shape, generator=torch.Generator().manual_seed(seed))
        assert loss(probe.weight + step) > here
