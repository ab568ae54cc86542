"""EfficientNet-Lite 0, 1 and 2 (Tan and Le, ICML 2019; the "Lite" edition has no squeeze-and-excitation, ReLU6 only).

    stem 3-32, k3 s2 -> seven groups of inverted bottlenecks -> head, 1x1 to 1,280 channels -> mean over positions

A block increases the channels ``expansion`` times (1x1), filters each channel (k x k) and reduces the channels again
(1x1, no ReLU6); if stride and width allow it, the input is added. Convolutions pad as TensorFlow's "same" does: at
stride 2 more at the right and the bottom. Pixels are scaled to (value - 127) / 128. The network is built untrained; its
ImageNet weights come from :mod:`nocl.nets.imagenet`. It ends before the classifier of ImageNet's thousand classes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from nocl.nets.backbone import Backbone, spread

SMALLEST = 32  # pixels of a side: strides divide it by 32; smaller images leave only padding
_EPS = 1e-3  # of batch normalisation


class _Group(NamedTuple):
    repeats: int
    kernel: int
    stride: int  # of the first block; the others have 1
    expansion: int
    channels: int


_GROUPS = (
    _Group(1, 3, 1, 1, 16),
    _Group(2, 3, 2, 6, 24),
    _Group(2, 5, 2, 6, 40),
    _Group(3, 3, 2, 6, 80),
    _Group(3, 5, 1, 6, 112),
    _Group(4, 5, 2, 6, 192),
    _Group(1, 3, 1, 6, 320),
)
_STAGE_GROUPS = (1, 2, 4, 6)  # stages 1 to 4 are the ends of these groups (24, 40, 112, 320 channels); 5 is the head
_STEM, _HEAD = 32, 1280  # the same for all widths


class ConvNorm(nn.Module):
    """A convolution with "same" padding, batch normalisation and optional ReLU6."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0  # at stride 1 "same" is symmetric
        self.conv = nn.Conv2d(n_in, n_out, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(n_out, eps=_EPS)
        self.kernel, self.stride, self.relu = kernel, stride, relu

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            (top, bottom), (left, right) = (_same(int(side), self.kernel, self.stride) for side in x.shape[2:])
            # fixed sizes and a value of its own: so ONNX Runtime makes it part of the convolution
            x = F.pad(x, (left, right, top, bottom), value=0.0)
        x = self.norm(self.conv(x))
        return F.relu6(x) if self.relu else x


class Block(nn.Module):
    """An inverted bottleneck."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = n_in * expansion
        self.expand = ConvNorm(n_in, wide, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide)
        self.project = ConvNorm(wide, n_out, 1, relu=False)
        self.adds = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        out: Tensor = self.project(self.depthwise(wide))
        return out + x if self.adds else out


class EfficientNetLite(Backbone):
    """Five stages; the feature is the last one's mean over positions, 1,280 values at any size from 32 px."""

    n_stages = 5
    has_maps = True
    side = 160  # see benchmarks/input_size.py
    fit = "photo"

    def __init__(self, width: float = 1.0, depth: float = 1.0) -> None:
        super().__init__()
        self.mean.fill_(127 / 255)
        self.std.fill_(128 / 255)
        self.stem = ConvNorm(3, _STEM, 3, stride=2)
        blocks: list[Block] = []
        ends: list[int] = []  # number of blocks up to the end of each group
        n_in = _STEM
        for number, group in enumerate(_GROUPS):
            n_out = _rounded(width * group.channels)
            fixed = number in (0, len(_GROUPS) - 1)
            for i in range(group.repeats if fixed else math.ceil(depth * group.repeats)):
                stride = group.stride if i == 0 else 1
                blocks.append(Block(n_in, n_out, group.kernel, stride, group.expansion))
                n_in = n_out
            ends.append(len(blocks))
        self.blocks = nn.ModuleList(blocks)
        self.head = ConvNorm(n_in, _HEAD, 1)
        self._stage_ends = tuple(ends[group] for group in _STAGE_GROUPS)

    def stage_maps(self, x: Tensor) -> tuple[Tensor, ...]:
        """The five stages' activations, each [B, C, H, W]."""
        if min(x.shape[2:]) < SMALLEST:
            raise ValueError(
                f"images are {x.shape[3]}x{x.shape[2]} px; EfficientNet-Lite takes {SMALLEST} px a side or more: "
                "give a larger size"
            )
        out = self.stem(x)
        maps = []
        for done, block in enumerate(self.blocks, start=1):
            out = block(out)
            if done in self._stage_ends:
                maps.append(out)
        return (*maps, self.head(out))

    def stage_features(self, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, ...]:
        """The mean over all positions of every stage."""
        maps = self.stage_maps(x)
        return tuple(spread(maps[-s - 1]) if s < 0 else maps[s - 1].mean(dim=(2, 3)) for s in stages)

    def early(self, x: Tensor) -> Tensor:
        """Activations after the second stage."""
        out: Tensor = self.stem(x)
        for block in self.blocks[: self._stage_ends[1]]:
            out = block(out)
        return out

    def late(self, h: Tensor) -> Tensor:
        for block in self.blocks[self._stage_ends[1] :]:
            h = block(h)
        out: Tensor = self.head(h)
        return out.mean(dim=(2, 3))


def efficientnet_lite0() -> EfficientNetLite:
    """Trained at 224 px; 3,371,008 parameters before the classifier."""
    return EfficientNetLite()


def efficientnet_lite1() -> EfficientNetLite:
    """Trained at 240 px; 4,135,680 parameters before the classifier."""
    return EfficientNetLite(depth=1.1)


def efficientnet_lite2() -> EfficientNetLite:
    """Trained at 260 px; 4,811,072 parameters before the classifier."""
    return EfficientNetLite(width=1.1, depth=1.2)


def _same(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, so that ``ceil(side / stride)`` positions fit; the odd pixel goes after."""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _rounded(channels: float) -> int:
    """To the nearest multiple of 8, but never down by more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
