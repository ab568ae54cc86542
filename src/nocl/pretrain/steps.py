"""What every training step needs: optimiser and learning rate of a recipe, and the check that the loss is finite."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nocl.pretrain.recipe import Recipe


def check_finite(loss: Tensor, epoch: int, recipe: Recipe) -> None:
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(f"loss is {loss.item()} in base epoch {epoch + 1}; try a smaller lr than {recipe.lr}")


def optimizer_of(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "adam":
        return torch.optim.Adam(list(parameters), recipe.lr, weight_decay=recipe.weight_decay)
    momentum = max(recipe.momentum, 0.9) if recipe.schedule == "onecycle" else recipe.momentum
    return torch.optim.SGD(
        list(parameters), recipe.lr, momentum, weight_decay=recipe.weight_decay, nesterov=momentum > 0
    )


def learning_rate(recipe: Recipe, epoch: int, step: int, steps: int) -> float:
    """The rate at a step: constant, divided at milestones, a cosine to zero, or linear warm-up (30 %) and a cosine."""
    if recipe.schedule not in ("cosine", "onecycle"):
        return recipe.lr * 0.1 ** sum(epoch >= milestone for milestone in recipe.milestones())
    warm = max(1, round(0.3 * steps)) if recipe.schedule == "onecycle" else 0
    if step < warm:
        return recipe.lr * (step + 1) / warm
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
