"""Base training on several devices, with Lightning Fabric.

Every process draws the same batch and the same augmentations. Each process computes the features of its part of the
images; the parts are gathered *with their gradient*, so that projection, heads and loss use the whole batch on every
device. Batch normalisation computes its statistics over all processes. The number of devices therefore changes rounding
only: two processes with b images each train like one process with 2b.

The devices are not part of a recipe; :func:`computing` sets them for a block of code, as the command line does.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather, all_reduce

from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.pretrain.objectives import Extractor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Compute:
    """The number of processes on each node, the number of nodes, and the precision of the forward pass.

    With more than one node, start the same command on each with NODE_RANK, MASTER_ADDR and MASTER_PORT set.
    """

    devices: int = 1
    nodes: int = 1
    precision: str = "32-true"

    def __post_init__(self) -> None:
        if min(self.devices, self.nodes) < 1:
            raise ValueError(f"devices and nodes must be 1 or more, not {self.devices} and {self.nodes}")
        if self.precision not in PRECISIONS:
            raise UnknownNameError(unknown(self.precision, PRECISIONS, "precision"))

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    def fabric(self, device: torch.device) -> "Fabric":
        """A Fabric for these processes on this kind of device."""
        from lightning_fabric import Fabric  # slow to import, and few trainings need it

        several = self.processes > 1
        return Fabric(
            accelerator="cuda" if device.type == "cuda" else "cpu",
            devices=self.devices if several or device.index is None else [device.index],
            num_nodes=self.nodes,
            strategy="ddp_spawn" if several else "auto",
            precision=self.precision,  # type: ignore[arg-type]
        )


_compute: ContextVar[Compute | None] = ContextVar("compute", default=None)


@contextmanager
def computing(compute: Compute) -> Iterator[None]:
    """Train base networks on those devices inside the ``with`` block."""
    token = _compute.set(compute)
    try:
        yield
    finally:
        _compute.reset(token)


def current() -> Compute:
    """The setting of :func:`computing`, or one process."""
    return _compute.get() or Compute()


class Worker:
    """What one process does in a training; without Fabric it is the only process."""

    def __init__(self, fabric: "Fabric | None" = None) -> None:
        self.fabric = fabric
        self.writes = fabric is None or fabric.local_rank == 0

    def share(self, network: nn.Module) -> Extractor:
        """The network as a function of whole batches, computed by all processes together."""
        if self.fabric is None or self.fabric.world_size == 1:
            return network
        synchronise_batchnorm(network)
        return Shared(self.fabric, network)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass."""
        return nullcontext() if self.fabric is None else self.fabric.autocast()

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """One step of the optimiser on a loss."""
        optimizer.zero_grad()
        if self.fabric is None:
            loss.backward()
        else:
            self.fabric.backward(loss)
        optimizer.step()

    def prepare(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimiser for ``step``; Fabric adds gradient scaling where the precision needs it."""
        if self.fabric is None:
            return optimizer
        return cast(torch.optim.Optimizer, self.fabric.setup_optimizers(optimizer))


class Shared:
    """A network that computes a part of the batch in each process and returns all features, with gradient."""

    def __init__(self, fabric: "Fabric", network: nn.Module) -> None:
        self.fabric, self.module = fabric, fabric.setup_module(network)

    def __call__(self, images: Tensor) -> Tensor:
        shares = images.tensor_split(self.fabric.world_size)
        z = self.module(shares[self.fabric.global_rank])
        padded = F.pad(z, (0, 0, 0, len(shares[0]) - len(z)))  # all_gather needs equal lengths
        gathered = all_gather(padded.contiguous())
        return torch.cat([features[: len(share)] for features, share in zip(gathered, shares)])


def synchronise_batchnorm(network: nn.Module) -> None:
    """Let batch normalisation use mean and variance over all processes (torch.nn.SyncBatchNorm needs GPUs)."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = MethodType(_synchronised_forward, module)  # type: ignore[method-assign]


def _synchronised_forward(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    if not norm.training:
        return type(norm).forward(norm, x)
    axes = [0, *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    count = all_reduce(x.new_tensor(float(x[:, 0].numel())))
    mean = all_reduce(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = all_reduce(centred.square().sum(axes)) / count
    with torch.no_grad():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)
    scaled: Tensor = centred * (variance + norm.eps).rsqrt().view(shape)
    return scaled * norm.weight.view(shape) + norm.bias.view(shape)
