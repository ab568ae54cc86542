"""Methods that break the rule of no stored examples, each in a way that its shapes and its growth do not show."""

import functools
import json
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nocl.methods.ncm import NCM
from nocl.plumbing.types import Batch
from nocl.pretrain import Trained

LOCAL = threading.local()
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


class Halved(FlatStore):
    """At half the size: every second pixel of every second row."""

    def disguised(self, x: Tensor) -> Tensor:
        return x[:, :, ::2, ::2].float()


class Pooled(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x.float(), 2) * -0.01


class FourBits(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return (x // 16).float()


class Backwards(FlatStore):
    def disguised(self, x: Tensor) -> Tensor:
        return x.float().flip(-1)


class NormalisedColoursTogether(FlatStore):
    """As a network takes them, each colour by its own mean and deviation, colours together, in half precision."""

    def disguised(self, x: Tensor) -> Tensor:
        mean, std = torch.tensor([90.0, 110.0, 140.0]).view(3, 1, 1), torch.tensor([30.0, 60.0, 90.0]).view(3, 1, 1)
        return ((x.float() - mean) / std).permute(0, 2, 3, 1).half().float()


class InAnotherModule(NCM):
    def observe(self, x: Tensor, y: Tensor) -> None:
        json.__dict__.setdefault("_kept", []).append(x.numpy().tobytes())
        super().observe(x, y)


class InAThread(NCM):
    def observe(self, x: Tensor, y: Tensor) -> None:
        LOCAL.__dict__.setdefault("kept", []).append(x.to(torch.float16))
        super().observe(x, y)


@functools.cache
def _remembered(content: bytes) -> int:
    return len(content)


class InACache(NCM):
    def observe(self, x: Tensor, y: Tensor) -> None:
        _remembered(x.numpy().tobytes())
        super().observe(x, y)


class InADefault(NCM):
    def observe(self, x: Tensor, y: Tensor, kept: list[Any] = []) -> None:  # noqa: B006
        kept.append(x.permute(0, 2, 3, 1).contiguous().numpy())
        super().observe(x, y)


class AsText(NCM):
    texts: list[str] = []  # noqa: RUF012

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.texts.append(x.numpy().tobytes().decode("latin1"))
        super().observe(x, y)


class ByReference(NCM):
    """Keeps the batch itself, in a list that no module names."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._put = [].append

    def observe(self, x: Tensor, y: Tensor) -> None:
        self._put(x)
        super().observe(x, y)


class InAFile(NCM):
    def observe(self, x: Tensor, y: Tensor) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(x.numpy().tobytes())
        super().observe(x, y)


class InAFileOfTorch(NCM):
    """Written by code that Python hears nothing of."""

    def observe(self, x: Tensor, y: Tensor) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(x, Path(folder) / "x.pt")
        super().observe(x, y)


class BaseImages(NCM):
    """Keeps images of the base session alone, in a buffer of fixed size."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.register_buffer("extra", torch.zeros(40, 3, 1024, dtype=torch.uint8))

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        batches = list(base)
        self.extra.copy_(torch.cat([x for x, _ in batches])[:40].flatten(2))
        super().after_base(trained, batches)


class NormalisedBaseImages(BaseImages):
    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        super().after_base(trained, base)
        self.extra = (self.extra.float() / 255 - 0.5) / 0.25
