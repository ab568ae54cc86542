"""Layers whose rows are classes and which grow when classes arrive."""

import math

import torch
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """A linear classifier that starts with no classes; ``grow`` adds rows and leaves the old ones as they are."""

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
