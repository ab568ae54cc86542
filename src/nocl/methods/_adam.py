"""Adam as part of a learner's state, for methods that go on training online."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Adam(nn.Module):
    """Adam with its moments in buffers, so that they are saved with the learner and grow with its parameters."""

    steps: Tensor  # int64 []

    def __init__(self, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__()
        self.lr, self.weight_decay, self.betas = lr, weight_decay, betas
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Room for the moments of these parameters; rows that are new begin at 0."""
        for name, value in parameters.items():
            for buffer in _moment_names(name):
                grown = torch.zeros_like(value, requires_grad=False)
                old = getattr(self, buffer, grown[:0])
                grown[: len(old)] = old
                self.register_buffer(buffer, grown)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget all moments, as a new optimiser would."""
        for buffer in self.buffers():
            buffer.zero_()

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> None:
        self.steps += 1
        first_bias, second_bias = (1 - beta ** int(self.steps) for beta in self.betas)
        for name, value in parameters.items():
            first, second = (getattr(self, buffer) for buffer in _moment_names(name))
            slope = gradient[name] + self.weight_decay * value
            first.lerp_(slope, 1 - self.betas[0])
            second.lerp_(slope.square(), 1 - self.betas[1])
            value.sub_(self.lr / first_bias * first / ((second / second_bias).sqrt() + 1e-8))


def _moment_names(name: str) -> tuple[str, str]:
    flat = name.replace(".", "_")
    return f"first_{flat}", f"second_{flat}"
