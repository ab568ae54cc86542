"""Augmentation of whole batches with kornia, drawn from an explicit generator.

kornia takes its random numbers from torch's global generator; :class:`Augment` seeds a forked copy of it from ours,
so that our generator alone decides and the global one is left as it was.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from nocl.lookup import UnknownNameError, unknown
from nocl.seeding import scoped

AUGMENTATIONS = ("none", "flip", "crop_flip", "heavy")


class Augment:
    """An augmentation by name: images float [B, 3, H, W] in [0, 1] to the same.

    ``crop_flip``: pad by an eighth, crop, flip. ``heavy``: the view of supervised contrastive training (protocol
    section 6): resized crop of 20 to 100 % of the area, flip, colour jitter, grey.
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
    if name == "crop_flip":
        return nn.Sequential(K.RandomCrop((height, width), padding=(height // 8, width // 8)), flip)
    return nn.Sequential(
        K.RandomResizedCrop((height, width), scale=(0.2, 1.0)),
        flip,
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
