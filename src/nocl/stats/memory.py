"""Stored exemplars, for the baselines that keep images.

A memory holds ``uint8`` images with their class columns in buffers of fixed size, so its size is bounded and it is
saved with the learner. :class:`Reservoir` keeps a uniform sample of everything offered; :class:`BalancedMemory` keeps
classes equally large. The functions below evaluate a model after a hypothetical step, without changing its parameters,
gradients or batch statistics.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Memory(nn.Module):
    """Images and class columns in ``size`` slots. Slots below ``filled`` are in use; ``seen`` counts all offered."""

    images: Tensor  # uint8 [M, 3, H, W]
    columns: Tensor  # int64 [M]
    filled: Tensor  # int64 []
    seen: Tensor  # int64 []

    def __init__(self, size: int, image_size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"memory_size must be 1 or more, not {size}")
        self.size = size
        self.register_buffer("images", torch.zeros(size, 3, image_size, image_size, dtype=torch.uint8))
        self.register_buffer("columns", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return int(self.filled)

    def counts(self, n_classes: int) -> Tensor:
        """Images kept of each class, int64 [K]."""
        return torch.bincount(self.columns[: len(self)], minlength=n_classes)

    def random(self, n: int, generator: torch.Generator, avoid: Tensor | None = None) -> Tensor:
        """Slots of ``n`` images drawn without replacement, fewer if there are fewer."""
        slots = torch.randperm(len(self), generator=generator).to(self.columns.device)
        if avoid is not None:
            slots = slots[~torch.isin(slots, avoid)]
        return slots[:n]

    def balanced(self, per_class: int, generator: torch.Generator, avoid: Tensor | None = None) -> Tensor:
        """Slots of ``per_class`` images of every class, drawn without replacement, fewer where there are fewer."""
        slots = self.random(len(self), generator, avoid)
        slots = slots[self.columns[slots].argsort(stable=True)]
        columns = self.columns[slots]
        rank = torch.arange(len(slots), device=slots.device) - torch.searchsorted(columns, columns)
        return slots[rank < per_class]

    def write(self, x: Tensor, columns: Tensor, slots: Tensor) -> None:
        """Write images to slots. A slot of ``size`` or more drops its image; of equal slots the last is written."""
        last = {slot: i for i, slot in enumerate(slots.tolist()) if slot < self.size}
        if not last:
            return
        target = torch.tensor(list(last), device=self.columns.device)
        source = torch.tensor(list(last.values()))
        self.images[target] = x[source.to(x.device)].to(self.images.device)
        self.columns[target] = columns[source.to(columns.device)].to(self.columns.device)
        self.filled.fill_(max(len(self), max(last) + 1))


class Reservoir(Memory):
    """A uniform sample of all images offered: each is kept with probability ``size / seen``."""

    def update(self, x: Tensor, columns: Tensor, generator: torch.Generator) -> None:
        """Offer images. The t-th image ever offered draws a slot below t; free slots are taken in order first."""
        position = int(self.seen) + torch.arange(len(columns))
        drawn = (torch.rand(len(columns), generator=generator, dtype=torch.float64) * (position + 1)).long()
        self.write(x, columns, torch.where(position < self.size, position, drawn))
        self.seen += len(columns)


class BalancedMemory(Memory):
    """GDumb's greedy sampler: an image of a class below its equal share replaces one of the largest class."""

    arrival: Tensor  # int64 [M], number of the offer that filled the slot

    def __init__(self, size: int, image_size: int) -> None:
        super().__init__(size, image_size)
        self.register_buffer("arrival", torch.zeros(size, dtype=torch.int64))

    def update(self, x: Tensor, columns: Tensor, generator: torch.Generator) -> None:
        """Offer images one after the other; each decision depends on the one before."""
        counts = {column: n for column, n in enumerate(self.counts(0).tolist()) if n}
        for i, column in enumerate(columns.tolist()):
            if column not in counts or counts[column] < self.size // max(1, len(counts)):
                slot = len(self) if len(self) < self.size else self._evict(counts, column, generator)
                counts[column] = counts.get(column, 0) + 1
                self.write(x[i : i + 1], columns[i : i + 1], torch.tensor([slot]))
                self.arrival[slot] = self.seen
            self.seen += 1

    def _evict(self, counts: dict[int, int], column: int, generator: torch.Generator) -> int:
        """The slot of a random image of the largest class; a random one of equally large classes."""
        if column not in counts and len(counts) >= self.size:
            raise ValueError(
                f"memory_size {self.size} cannot hold {len(counts) + 1} classes: give at least one slot a class"
            )
        most = max(counts.values())
        tied = [other for other, n in counts.items() if n == most]
        loser = tied[below(len(tied), generator)]
        members = (self.columns == loser).nonzero().flatten()
        members = members[self.arrival[members].argsort()]
        counts[loser] -= 1
        if not counts[loser]:
            del counts[loser]
        return int(members[below(len(members), generator)])


def below(n: int, generator: torch.Generator) -> int:
    """A random integer from 0 to ``n - 1``."""
    return int(torch.randint(n, (1,), generator=generator))


def highest(scores: Tensor, n: int) -> Tensor:
    """Indices of the ``n`` highest scores, best first; equal scores in their own order."""
    return scores.sort(descending=True, stable=True).indices[:n]


# --- looking ahead ---------------------------------------------------------------------------------------------


def gradients(loss: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The loss's gradient by parameter name; nothing is written into ``.grad``."""
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(f"the loss is {loss.item()}: training diverged; try a smaller lr")
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))


def moved(parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
    """Parameters after a virtual step: theta - lr * gradient, as new tensors."""
    return {name: value.detach() - lr * gradient[name] for name, value in parameters.items()}


@torch.no_grad()
def look(model: nn.Module, x: Tensor, parameters: Mapping[str, Tensor]) -> Any:
    """The output of ``model`` with other parameters. In training mode only a copy of its batch statistics changes."""
    named = dict(model.named_buffers())
    copies = {name: named[name].clone() for name in named if "running_" in name or "num_batches" in name}
    return functional_call(model, {**copies, **parameters}, (x,))
