"""Networks of a user: with and without trained weights, and two as the timm package makes them."""

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """One layer, [B, 3, H, W] to [B, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.relu(self.layer(x)).mean((2, 3))
        return out


class Deep(nn.Module):
    """Three layers that say where they are, the last of tokens, as timm's networks do."""

    pretrained_cfg = {"input_size": (3, 48, 48)}  # noqa: RUF012
    feature_info = [  # noqa: RUF012
        {"num_chs": 4, "module": "one"},
        {"num_chs": 5, "module": "two"},
        {"num_chs": 6, "module": "tokens"},
    ]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.tokens = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 5, 3, 2), _Tokens()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.relu(self.tokens(self.two(self.one(x)))).mean(1)
        return out


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(2).transpose(1, 2))  # [B, tokens, 6]
        return out


def untrained() -> nn.Module:
    """Random weights, to be trained."""
    return Plain()


def trained() -> nn.Module:
    """Weights that do not depend on the seed, as those read from a file."""
    network = Plain()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draw) - 0.3)
    return network
