"""The reduced ResNet-18 of online continual learning: a quarter of the usual width, a 3x3 stem, no max-pooling.

Parameter names follow the usual ResNet names, so that checkpoints of public code load by name.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nocl.nets.backbone import Backbone, spread


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a 1x1 convolution on the shortcut where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ReducedResNet18(Backbone):
    """Four stages of two blocks. At width 20: 1,093,140 parameters; 160 / 640 / 2560 features at 32 / 84 / 128 px."""

    n_stages = 4
    has_maps = True

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)

    def stage_maps(self, x: Tensor) -> tuple[Tensor, ...]:
        """The four stages' activations, each [B, C, H, W], after their last ReLU."""
        out = F.relu(self.bn1(self.conv1(x)))
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            out = stage(out)
            maps.append(out)
        return tuple(maps)

    def early(self, x: Tensor) -> Tensor:
        """Activations [B, C, H, W] after the second stage."""
        out: Tensor = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return out

    def late(self, h: Tensor) -> Tensor:
        return _pool_windows(self.layer4(self.layer3(h)))

    def stage_features(self, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, ...]:
        """Earlier stages: the mean over all positions. The last: means over 4x4 windows, flattened, as in DSR."""
        maps = self.stage_maps(x)
        return tuple(_pooled(maps[abs(s) - 1], s) for s in stages)


def reduced_resnet18() -> ReducedResNet18:
    """The network of the paper."""
    return ReducedResNet18(width=20)


def tiny_resnet18() -> ReducedResNet18:
    """The same at width 8 (about 175,000 parameters): for quick checks and small devices."""
    return ReducedResNet18(width=8)


def _stage(n_in: int, n_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(n_in, n_out, stride), BasicBlock(n_out, n_out, 1))


def _pooled(maps: Tensor, stage: int) -> Tensor:
    if stage < 0:
        return spread(maps)
    return _pool_windows(maps) if stage == 4 else maps.mean(dim=(2, 3))


def _pool_windows(maps: Tensor) -> Tensor:
    if min(maps.shape[2:]) < 4:
        raise ValueError(f"the last stage is {maps.shape[2]}x{maps.shape[3]}; images must be at least 25 px a side")
    return F.avg_pool2d(maps, 4).flatten(1)
