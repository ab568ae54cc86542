"""Features instead of images: ``backbone="features:D"`` takes rows of D numbers as features.

For features made by another program (embeddings), and for comparisons on features that were computed once. Every method
on a frozen network works on such vectors as on images. There is no network to train, so a base session trains at most
the projection and heads of the method, on the features.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nocl.nets.backbone import Backbone
from nocl.plumbing.registry import UnknownNameError

PREFIX = "features:"


class StoredFeatures(Backbone):
    """A backbone whose input is already the feature, float [B, dim]; it has one stage and no parameters."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def read(self, x: Tensor, image_size: int) -> Tensor:
        """Features float [B, dim] on this network's device, after a check; the image size is not used."""
        if not x.is_floating_point() or x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(
                f"features must be float [B, {self.dim}], not {str(x.dtype).removeprefix('torch.')} {list(x.shape)}; "
                f"build the learner with backbone='{PREFIX}D', D being the length of your features"
            )
        z = x.to(self.mean.device, torch.float32)
        finite = torch.isfinite(z).all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise ValueError(f"features must be finite numbers; row {row} of {len(z)} is not: remove or correct it")
        return z

    def normalise(self, x: Tensor) -> Tensor:
        """The features, unchanged."""
        return x

    def forward(self, x: Tensor, stages: Sequence[int] | None = None) -> Tensor:
        """The features, unchanged; their stages were chosen when they were computed."""
        return x

    def feature_dim(self, image_size: int, stages: Sequence[int] | None = None) -> int:
        return self.dim


def stored_factory(name: str) -> Callable[[], StoredFeatures]:
    """Builds the backbone named ``features:D``."""
    length = name.removeprefix(PREFIX)
    if not length.isdecimal() or int(length) < 1:
        raise UnknownNameError(f"backbone {name!r}: write the length of the features, 1 or more, as in {PREFIX}512")
    return lambda: StoredFeatures(int(length))
