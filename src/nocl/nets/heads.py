"""Layers with one row for each class that grow when new classes arrive."""

import math

import torch
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """A linear classifier that starts with no classes; ``grow`` adds rows without changing the old ones."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.zeros(0, dim))
        self.bias = nn.Parameter(torch.zeros(0))

    def grow(self, n: int, generator: torch.Generator) -> None:
        """Add ``n`` rows, uniform in +-1/sqrt(dim) as torch's own linear layer."""
        bound = 1 / math.sqrt(self.dim)
        rows = torch.rand(n, self.dim, generator=generator).mul_(2 * bound).sub_(bound).to(self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(n)]))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.T + self.bias


class GrowingPairHead(nn.Module):
    """DVC's head on the logits of two views: linear of both [2 K] to ``hidden``, ReLU, linear to K joint logits.

    The first layer has one row for each class and view, so that a new class only adds rows.
    """

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(0, hidden))
        self.second = nn.Parameter(torch.zeros(0, hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.out = GrowingLinear(hidden)
        self._draw_bias(generator)

    def _draw_bias(self, generator: torch.Generator) -> None:
        bound = 1 / math.sqrt(len(self.bias))
        self.bias.data.copy_(torch.rand(len(self.bias), generator=generator) * 2 * bound - bound)

    def grow(self, n: int, generator: torch.Generator) -> None:
        """Add ``n`` classes, uniform in +-1/sqrt(2 K) as torch's own layer of that width would be."""
        bound = 1 / math.sqrt(2 * (len(self.first) + n))
        for name in ("first", "second"):
            old = getattr(self, name)
            rows = torch.rand(n, old.shape[1], generator=generator).mul_(2 * bound).sub_(bound).to(old)
            setattr(self, name, nn.Parameter(torch.cat([old.detach(), rows])))
        self.out.grow(n, generator)

    def forward(self, raw: Tensor, heavy: Tensor) -> Tensor:
        joint: Tensor = self.out(torch.relu(raw @ self.first + heavy @ self.second + self.bias))
        return joint
