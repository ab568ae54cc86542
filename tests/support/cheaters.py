"""Methods that break the rule of no stored examples, each in a way that its shapes and its growth do not show."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nocl.methods.ncm import NCM

STASH: dict[int, Any] = {}
_NUMBER = iter(range(10**9))


class FlatStore(NCM):
    """A fixed store of flattened raw images: it never grows and has no image's shape."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.register_buffer("table", torch.zeros(400, 768))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def keep(self, x: Tensor) -> None:
        rows = self.disguised(x).reshape(-1, 768)
        for row in rows:
            self.table[int(self.place) % 400] = row
            self.place += 1

    def disguised(self, x: Tensor) -> Tensor:
        return x.float()

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.keep(x)
        super().observe(x, y)


class ScaledStore(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return (x.float() / 255 - 0.5) / 0.25


class ColoursTogether(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).float()


class CroppedRows(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return x[:, :, 4:28, 4:28].float()[:, :, :, :].reshape(len(x), -1)[:, :768]


class InTheModule(NCM):
    def observe(self, x: Tensor, y: Tensor) -> None:
        STASH[next(_NUMBER)] = x.numpy().tobytes()
        super().observe(x, y)


def _closure() -> Any:
    kept: list[Any] = []
    return lambda x: kept.append(x.numpy().astype(np.float32) / 255)


class InAClosure(NCM):
    put = staticmethod(_closure())

    def observe(self, x: Tensor, y: Tensor) -> None:
        type(self).put(x)
        super().observe(x, y)


class OnTheClass(NCM):
    kept: dict[int, list[int]] = {}  # noqa: RUF012

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.kept[len(self.kept)] = x.flatten().tolist()
        super().observe(x, y)


class AnswersFromTheModule(NCM):
    """Its state is innocent, but a part of its answer lies in the module."""

    def observe(self, x: Tensor, y: Tensor) -> None:
        STASH[-1] = STASH.get(-1, 0.0) + float(x.float().mean())
        super().observe(x, y)

    def score(self, z: Tensor) -> Tensor:
        return super().score(z) + STASH.get(-1, 0.0)
