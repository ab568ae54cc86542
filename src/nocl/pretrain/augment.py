"""Augmentation of whole batches with kornia, drawn from an explicit generator.

kornia draws random numbers from torch's global generator. :class:`Augment` seeds it from our generator and afterwards
restores its state, so that results depend on our generator alone.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.plumbing.seeding import scoped

AUGMENTATIONS = ("none", "flip", "crop_flip", "bright_crop_flip", "autoaugment", "heavy", "heavy_jitter", "weak")


class Augment:
    """An augmentation by name: images float [B, 3, H, W] in [0, 1] to the same.

    ``crop_flip``: pad by an eighth, crop, flip. ``bright_crop_flip``: the same and brightness by a factor within
    1 +- 63 / 255 (PASS, SSRE). ``autoaugment``: crop, flip, kornia's AutoAugment with the CIFAR-10 policy, one of its
    sub-policies for each batch, and a square of half the side set to black (FACT, SSRE). ``heavy``: for
    supervised contrastive training, resized crop of 20 to 100 % of the area, flip, colour jitter, grey.
    ``heavy_jitter``: the same with the jitter always on (DVC). ``weak``: resized crop of 30 to 100 %, flip, grey (OCM).
    """

    def __init__(self, name: str) -> None:
        if name not in AUGMENTATIONS:
            raise UnknownNameError(unknown(name, AUGMENTATIONS, "augmentation"))
        self.name = name

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.name == "none" or not len(x):
            return x
        seed = int(torch.randint(2**31, (1,), generator=generator))
        with scoped(seed):
            out: Tensor = _pipeline(self.name, x.shape[-2], x.shape[-1])(x)
        return out


@lru_cache(maxsize=16)
def _pipeline(name: str, height: int, width: int) -> nn.Module:
    import kornia.augmentation as K  # slow to import, and only training needs it

    flip = K.RandomHorizontalFlip(p=0.5)
    if name == "flip":
        return nn.Sequential(flip)
    crop = K.RandomCrop((height, width), padding=(height // 8, width // 8))
    if name == "crop_flip":
        return nn.Sequential(crop, flip)
    if name == "bright_crop_flip":
        return nn.Sequential(crop, flip, K.ColorJiggle(brightness=63 / 255, p=1.0))
    if name == "autoaugment":
        from kornia.augmentation.auto import AutoAugment

        return nn.Sequential(crop, flip, AutoAugment("cifar10"), K.RandomErasing((0.25, 0.25), (1.0, 1.0), p=1.0))
    if name == "weak":
        zoom = K.RandomResizedCrop((height, width), scale=(0.3, 1.0))
        return nn.Sequential(flip, K.RandomGrayscale(p=0.25), zoom)
    return nn.Sequential(
        K.RandomResizedCrop((height, width), scale=(0.2, 1.0)),
        flip,
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0 if name == "heavy_jitter" else 0.8),
        K.RandomGrayscale(p=0.2),
    )


def rotated(x: Tensor) -> Tensor:
    """Images [B, 3, H, W] in four rotations by 0 to 3 quarter turns, counter-clockwise, as [4 B, 3, H, W] (PASS).

    >>> rotated(torch.arange(4).view(1, 1, 2, 2))[1, 0]
    tensor([[1, 3],
            [0, 2]])
    """
    return torch.stack([x.rot90(k, (2, 3)) for k in range(4)], dim=1).flatten(0, 1)


def cutmix_box(share: float, centre: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    """Rows [top, bottom) and columns [left, right) that CutMix replaces, as (top, left, bottom, right).

    The box covers ``1 - share`` of the square image, less where it crosses the border.

    >>> cutmix_box(0.3, (1, 4), side=8)
    (0, 1, 4, 7)
    """
    half = int(side * math.sqrt(1 - share)) // 2
    row, column = centre
    return max(row - half, 0), max(column - half, 0), min(row + half, side), min(column + half, side)


def turned_variants(x: Tensor, n: int = 16) -> Tensor:
    """OCM's n variants of square images [B, 3, H, W] as [n B, 3, H, W]; the first variant is the image itself.

    Variant 4 r + l rotates the right half, both halves or the left half (l = 1, 2, 3) by 180 degrees, and then the
    whole image by r quarter turns counter-clockwise. ``n`` = 4 does not rotate halves, ``n`` = 1 does not rotate at
    all.

    >>> turned_variants(torch.arange(4).view(1, 1, 2, 2), n=4)[1, 0]
    tensor([[1, 3],
            [0, 2]])
    """
    if n not in (1, 4, 16):
        raise ValueError(f"there are 1, 4 or 16 variants, not {n}")
    if x.shape[2] != x.shape[3] or x.shape[3] % 2:
        raise ValueError(f"images must be square with an even side, not {list(x.shape[2:])}")
    local = [x]
    if n == 16:
        left, right = x.chunk(2, dim=3)
        turned_left, turned_right = left.flip(2, 3), right.flip(2, 3)
        pairs = [(left, turned_right), (turned_left, turned_right), (turned_left, right)]
        local += [torch.cat(pair, dim=3) for pair in pairs]
    turns = range(1 if n == 1 else 4)
    return torch.cat([image.rot90(r, (2, 3)) for r in turns for image in local])
