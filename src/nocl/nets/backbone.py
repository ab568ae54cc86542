"""The backbone: images in, one feature vector for each stage out; input normalisation is in its buffers."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Backbone(nn.Module):
    """A feature extractor. Subclasses give ``n_stages`` and ``stage_features``; the last stage is the feature.

    A stage's number means the average of its maps over all positions. With a minus sign it means their *spread*, the
    standard deviation over positions, which describes texture. Only networks with ``has_maps`` have it.

    ``mean`` and ``std`` are buffers, so they are saved with the network; initially they are 0 and 1 and change nothing.
    ``side`` and ``fit`` say how users' pictures are resized for this network (:func:`nocl.data.decode.to_pixels`).
    ``enlarge_to`` is set by ``NAME@SIDE``: input images are resized to it, so that data sets of small images can be
    used.
    """

    n_stages: int = 1
    has_maps: bool = False
    side: int = 32  # pixels of a picture's side, unless the user gives another
    fit: Literal["crop", "photo"] = "crop"
    enlarge_to: int | None = None
    mean: Tensor  # [3, 1, 1], of pixels / 255
    std: Tensor  # [3, 1, 1]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("std", torch.ones(3, 1, 1))

    def stage_features(self, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, ...]:
        """One [B, d] tensor for each requested stage; stages count from 1, -n is the spread of stage n."""
        raise NotImplementedError

    def forward(self, x: Tensor, stages: Sequence[int] | None = None) -> Tensor:
        """Features [B, d] of normalised images: the last stage, or the requested stages, concatenated."""
        chosen = (self.n_stages,) if stages is None else tuple(stages)
        if not chosen or not {abs(stage) for stage in chosen} <= set(range(1, self.n_stages + 1)):
            raise ValueError(
                f"stages {list(chosen)}: this backbone has stages 1 to {self.n_stages}; stages='auto' takes what it has"
            )
        if min(chosen) < 0 and not self.has_maps:
            raise ValueError(
                f"stages {list(chosen)}: {type(self).__name__} does not give the spread of a stage (minus)"
            )
        return torch.cat(self.stage_features(x, chosen), dim=1)

    def last_stages(self, n: int) -> tuple[int, ...]:
        """The last ``n`` stages, or all if there are fewer."""
        return tuple(range(max(1, self.n_stages - n + 1), self.n_stages + 1))

    def early(self, x: Tensor) -> Tensor:
        """The output of the first half of the stages; the images themselves if there is no such half."""
        return x

    def late(self, h: Tensor) -> Tensor:
        """Features [B, d] of the output of ``early``: ``late(early(x))`` is ``forward(x)``."""
        return self.forward(h)

    def check(self, x: Tensor, image_size: int) -> None:
        """Refuse what is not a batch of uint8 images of that side."""
        if x.dtype != torch.uint8 or x.ndim != 4 or tuple(x.shape[1:]) != (3, image_size, image_size):
            raise ValueError(
                f"images must be uint8 [B, 3, {image_size}, {image_size}], not "
                f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}; resize them or build the learner with another "
                "image_size"
            )

    def read(self, x: Tensor, image_size: int) -> Tensor:
        """uint8 images of that side to float in [0, 1] on this network's device."""
        self.check(x, image_size)
        return x.to(self.mean.device).float() / 255

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels in [0, 1], normalised as in training, in the memory format that is fastest for convolutions."""
        x = (x - self.mean) / self.std
        if self.enlarge_to is not None and tuple(x.shape[2:]) != (self.enlarge_to,) * 2:
            x = F.interpolate(x, (self.enlarge_to,) * 2, mode="bicubic", align_corners=False)
        exporting = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
        if exporting or len(x) == 1:  # not in an exported graph; and a single image is faster without
            return x
        return x.contiguous(memory_format=torch.channels_last)

    def feature_dim(self, image_size: int, stages: Sequence[int] | None = None) -> int:
        """Length of the feature for square images of that size, found by passing one blank image."""
        was_training = self.training
        self.eval()
        with torch.no_grad():
            side = self.enlarge_to or image_size
            blank = torch.zeros(1, 3, side, side, device=self.mean.device)
            dim = self.forward(blank, stages).shape[1]
        self.train(was_training)
        return int(dim)


def spread(maps: Tensor) -> Tensor:
    """Standard deviation of maps [B, C, H, W] over their positions, [B, C].

    >>> spread(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[1.]])
    """
    away = maps - maps.mean(dim=(2, 3), keepdim=True)
    return away.square().mean(dim=(2, 3)).sqrt()


class Wrapped(Backbone):
    """Any module that maps [B, 3, H, W] to [B, d], as a backbone of one stage."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def stage_features(self, x: Tensor, stages: Sequence[int]) -> tuple[Tensor, ...]:
        out = self.module(x)
        if out.ndim != 2:
            raise ValueError(f"a backbone must return [B, d]; {type(self.module).__name__} gave {list(out.shape)}")
        return (out,) * len(stages)
