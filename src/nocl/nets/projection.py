"""The projection module theta2: a three-layer perceptron from features to the high-dimensional space."""

from torch import Tensor, nn

from nocl.plumbing.seeding import scoped


class Projection(nn.Module):
    """Linear-BN-ReLU, Linear-BN-ReLU, Linear-BN without gain. At d = 160 and D = 2048: 8,730,624 parameters."""

    def __init__(self, dim: int, high_dim: int, *, seed: int = 0) -> None:
        super().__init__()
        self.dim, self.high_dim = dim, high_dim
        with scoped(seed):
            self.layer1 = nn.Sequential(nn.Linear(dim, high_dim), nn.BatchNorm1d(high_dim), nn.ReLU())
            self.layer2 = nn.Sequential(nn.Linear(high_dim, high_dim), nn.BatchNorm1d(high_dim), nn.ReLU())
            self.layer3 = nn.Sequential(nn.Linear(high_dim, high_dim), nn.BatchNorm1d(high_dim, affine=False))

    def forward(self, z: Tensor) -> Tensor:
        """Features [B, d] to [B, D], unbounded."""
        out: Tensor = self.layer3(self.layer2(self.layer1(z)))
        return out
