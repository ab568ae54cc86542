"""Features in place of images: ``backbone="features:D"`` hands rows of D numbers through, as they are.

For features that some other program made (embeddings), and for comparisons on features that were computed once.
Every method on a frozen network then works on vectors as on images. There is nothing to train here, so a base session
trains at most the projection and heads of the method, on the features.
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
        """Features float [B, dim] on this network's device, after a check; the image size says nothing here."""
        if not x.is_floating_point() or x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(
                f"features must be float [B, {self.dim}], not {str(x.dtype).removeprefix('torch.')} {list(x.shape)}; "
                f"build the learner with backbone='{PREFIX}D', D being the length of your features"
            )
        z = x.to(self.mean.device, torch.float32)
        finite = torch.isfinite(z).all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise ValueError(f"features must be finite numbers; row {row} of {len(z)} is not: leave it out or mend it")
        return z

    def normalise(self, x: Tensor) -> Tensor:
        """The features themselves: what made them normalised its own input."""
        return x

    def forward(self, x: Tensor, stages: Sequence[int] | None = None) -> Tensor:
        """The features themselves; which stages they are of was decided when they were made."""
        return x

    def feature_dim(self, image_size: int, stages: Sequence[int] | None = None) -> int:
        return self.dim


def stored_factory(name: str) -> Callable[[], StoredFeatures]:
    """Builds the backbone named ``features:D``."""
    length = name.removeprefix(PREFIX)
    if not length.isdecimal() or int(length) < 1:
        raise UnknownNameError(f"backbone {name!r}: write the length of the features, 1 or more, as in {PREFIX}512")
    return lambda: StoredFeatures(int(length))
