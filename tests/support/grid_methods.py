"""Methods that misbehave on purpose, for the tests of the grid. In a module, because workers import it."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from nocl.learner import Common
from nocl.methods.ncm import NCM
from nocl.plumbing.types import Batch
from nocl.pretrain import OBJECTIVES, CrossEntropy, Trained

TIMES = ("seconds", "test_seconds", "peak_memory", "environment")


class Slowly(CrossEntropy):
    """Takes its time and leaves a mark for each training."""

    mark: Path | None = None

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.mark is not None:
            time.sleep(0.5)
            with self.mark.open("a") as file:
                file.write("epoch\n")
            type(self).mark = None
        return super().views(x, y, draw)


class Counting(NCM):
    """Marks in a file that its base network is being trained; ``tag`` makes different runs of it."""

    def __init__(self, *, counter: str = "", tag: str = "", **common: Unpack[Common]) -> None:
        OBJECTIVES["slowly"] = Slowly
        self.counter, self.tag = counter, tag
        common["recipe"] = {**(common.get("recipe") or {}), "objective": "slowly"}
        super().__init__(**common)

    def train_network(self, base: Iterable[Batch], workdir: Path | None) -> Trained:
        Slowly.mark = Path(self.counter)
        return super().train_network(base, workdir)


class Broken(NCM):
    """Raises while it learns."""

    def learn(self, z: Tensor, y: Tensor) -> None:
        raise ZeroDivisionError("broken on purpose")


class Dying(NCM):
    """Its process is killed, as for lack of memory."""

    def learn(self, z: Tensor, y: Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(NCM):
    """Writes its process into a file and waits in the last session, until a file says go."""

    def __init__(self, *, marks: str = "", **common: Unpack[Common]) -> None:
        self.marks = marks
        super().__init__(**common)

    def learn(self, z: Tensor, y: Tensor) -> None:
        with Path(self.marks).open("a") as file:
            file.write(f"{os.getpid()}\n")
        new = set(y.tolist()) - set(self.classes_.tolist())
        super().learn(z, y)
        if new and len(self.classes_) > 8:
            limit = time.monotonic() + 60
            while not Path(self.marks).with_suffix(".go").exists() and time.monotonic() < limit:
                time.sleep(0.1)
