"""Train projection and heads on stored features, without images."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nocl.nets import Backbone
from nocl.plumbing.files import read_tensors, write_tensors
from nocl.plumbing.progress import track
from nocl.plumbing.registry import by_name
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.pretrain.objectives import ABSENT, OBJECTIVES, Strategy
from nocl.pretrain.recipe import Recipe
from nocl.pretrain.steps import check_finite, learning_rate, optimizer_of

HEAD_BATCH = 100  # the paper's base batch
ON_FEATURES = "trained on features, one view of each image"  # what a result says of such heads


def trains_on_features(recipe: Recipe) -> bool:
    """True if the recipe's heads can be trained without images; rotations, mixtures and custom objectives need them."""
    return issubclass(by_name(recipe.objective, OBJECTIVES, "objective"), Strategy) and "+" not in recipe.objective


def kept_heads(
    path: Path | None, key: dict[str, JSON], network: Backbone, features: Callable[[], tuple[Tensor, Tensor]],
    recipe: Recipe, *, n_classes: int, seed: int,
) -> tuple[Strategy, list[float]]:  # fmt: skip
    """Load the heads from the file, or train them and write it; ``key`` holds the settings that determine them."""
    if path is not None and path.exists():
        tensors, header = read_tensors(path)
        if header.get("key") != key:
            raise ValueError(f"{path} was trained with other settings than its name says; delete it to train again")
        objective = _objective(network, network.feature_dim(0), recipe, n_classes, seed)
        objective.load_state_dict(tensors)
        losses = header.get("losses")
        kept = [float(str(loss)) for loss in losses] if isinstance(losses, list) else []
        return objective.to(network.mean.device).eval(), kept
    z, y = features()
    objective, trained = heads_on_features(network, z, y, recipe, n_classes=n_classes, seed=seed)
    if path is not None:
        write_tensors(path, objective.state_dict(), {"kind": "nocl heads", "key": key, "losses": list(trained)})
    return objective, trained


def heads_on_features(
    network: Backbone, z: Tensor, y: Tensor, recipe: Recipe, *, n_classes: int, seed: int
) -> tuple[Strategy, list[float]]:
    """Train the recipe's projection and heads on features [N, d] with labels 0 .. n - 1; also returns the losses.

    For cases where only features exist; ``train_base`` with ``weights`` has images and uses the objective's views. Here
    each image has one view, so ``augment`` and ``head_rounds`` have no effect, a contrastive loss compares different
    images of a class only, and rotations or mixtures are not possible.
    """
    objective = _objective(network, z.shape[1], recipe, n_classes, seed).to(z.device)
    return objective, fit_heads(objective, z, y, recipe, seed)


def fit_heads(objective: Strategy, z: Tensor, y: Tensor, recipe: Recipe, seed: int) -> list[float]:
    """Train an objective on features with the recipe's settings; see :func:`heads_on_features`."""
    optimizer = optimizer_of(objective.parameters(), recipe)
    n_batches = max(1, len(y) // HEAD_BATCH)
    targets = torch.stack([y, torch.full_like(y, ABSENT)], dim=1).to(z.device)
    losses = []
    objective.train()
    for epoch in track(range(recipe.head_epochs), "projection on features"):
        order = torch.randperm(len(y), generator=generator(seed, "order", epoch)).to(z.device)
        total = 0.0
        for step, rows in enumerate(order.tensor_split(n_batches)):
            loss = objective.terms(z[rows], targets[rows])
            check_finite(loss, epoch, recipe)
            done = epoch * n_batches + step
            optimizer.param_groups[0]["lr"] = learning_rate(recipe, epoch, done, recipe.head_epochs * n_batches)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        losses.append(total / len(y))
    optimizer.zero_grad(set_to_none=True)
    objective.eval()
    return losses


def _objective(network: Backbone, dim: int, recipe: Recipe, n_classes: int, seed: int) -> Strategy:
    factory = by_name(recipe.objective, OBJECTIVES, "objective")
    if not trains_on_features(recipe) or not issubclass(factory, Strategy):
        raise ValueError(
            f"objective {recipe.objective!r} needs images and only features are here: "
            "set recipe.objective to ce or sc, or train on images"
        )
    return factory.build(network, dim, n_classes, seed, recipe)
