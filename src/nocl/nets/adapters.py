"""SSRE's expansion: a 1x1 branch beside every inner 3x3 convolution, added to its kernel when a session ends.

    conv3(x; K3) + conv1(x; K1) = conv3(x; K3 + pad(K1)),    pad: zeros all around

Both sides are equal for any stride, so the expanded network is computed with the summed kernels; the branches are
separate parameters and get their gradient through the sum. Adding a branch to its kernel does not change the network's
output, bit for bit. Batch normalisation can also be merged into the convolution before it.
"""

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from nocl.nets.backbone import Backbone


class Adapters(nn.Module):
    """A 1x1 kernel, initially zero, for each inner 3x3 convolution of a network, without stem and shortcuts."""

    def __init__(self, network: Backbone) -> None:
        super().__init__()
        self.names = _inner_convolutions(network)
        kernels = {}
        for name in self.names:
            kernel = cast(nn.Conv2d, network.get_submodule(name)).weight
            kernels[_key(name)] = nn.Parameter(torch.zeros(*kernel.shape[:2], 1, 1))
        self.kernels = nn.ParameterDict(kernels)

    def encode(self, network: Backbone, x: Tensor) -> Tensor:
        """Features of the expanded network."""
        kernels = {f"{name}.weight": self._summed(network, name) for name in self.names}
        z: Tensor = functional_call(network, kernels, (x,))
        return z

    @torch.no_grad()
    def fold(self, network: Backbone) -> None:
        """Add the branches to the network's kernels and set them to zero."""
        for name in self.names:
            network.get_parameter(f"{name}.weight").copy_(self._summed(network, name))
            self.kernels[_key(name)].zero_()

    def _summed(self, network: Backbone, name: str) -> Tensor:
        return with_branch(network.get_parameter(f"{name}.weight").detach(), self.kernels[_key(name)])


def with_branch(kernel: Tensor, branch: Tensor) -> Tensor:
    """A 3x3 kernel [O, I, 3, 3] with a 1x1 kernel [O, I, 1, 1] added at its centre."""
    return kernel + F.pad(branch, (1, 1, 1, 1))


def folded_batchnorm(kernel: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Kernel and bias of one convolution equal to a convolution with batch normalisation in evaluation mode."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gain = norm.weight / (norm.running_var + norm.eps).sqrt()
    offset = norm.running_mean if bias is None else norm.running_mean - bias
    return kernel * gain.view(-1, 1, 1, 1), norm.bias - offset * gain


@torch.no_grad()
def fold_batchnorm(network: Backbone) -> None:
    """Merge every batch normalisation into the convolution before it, shortcuts included.

    The normalisation stays as a layer that only adds the new bias, so that the state keeps its names and shapes.
    """
    for module in network.modules():
        children = list(module.children())
        for conv, norm in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                kernel, bias = folded_batchnorm(conv.weight, conv.bias, norm)
                assert norm.running_mean is not None
                assert norm.running_var is not None
                conv.weight.copy_(kernel)
                if conv.bias is not None:
                    conv.bias.zero_()
                norm.weight.fill_(1)
                norm.bias.copy_(bias)
                norm.running_mean.zero_()
                norm.running_var.fill_(1 - norm.eps)


def _inner_convolutions(network: Backbone) -> list[str]:
    convolutions = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    names = [name for name, conv in convolutions[1:] if _is_plain(conv)]  # the first is the stem
    if not names:
        raise ValueError("the backbone has no 3x3 convolution after its stem to expand; use a ResNet")
    return names


def _is_plain(conv: nn.Conv2d) -> bool:
    shape = (conv.kernel_size, conv.padding, conv.dilation, conv.groups)
    return shape == ((3, 3), (1, 1), (1, 1), 1)


def _key(name: str) -> str:
    return name.replace(".", "_")
