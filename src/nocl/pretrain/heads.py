"""Projection and heads alone, trained on features where no images are at hand."""

import torch
from torch import Tensor

from nocl.nets import Backbone
from nocl.plumbing.progress import track
from nocl.plumbing.registry import by_name
from nocl.plumbing.seeding import generator
from nocl.pretrain.objectives import ABSENT, OBJECTIVES, Strategy
from nocl.pretrain.recipe import Recipe
from nocl.pretrain.steps import check_finite, learning_rate, optimizer_of

HEAD_BATCH = 100  # the paper's base batch


def heads_on_features(
    network: Backbone, z: Tensor, y: Tensor, recipe: Recipe, *, n_classes: int, seed: int
) -> tuple[Strategy, list[float]]:
    """The recipe's projection and heads, trained on features [N, d] of labels 0 .. n - 1, and each epoch's loss.

    What to do where only features are at hand; ``train_base`` with ``weights`` also draws the objective's views. Here
    each image has the one view that its feature is of, so ``augment`` and ``head_rounds`` have no meaning, a
    contrastive loss compares different images of a class alone, and rotations or mixtures cannot be had.
    """
    factory = by_name(recipe.objective, OBJECTIVES, "objective")
    if not issubclass(factory, Strategy) or "+" in recipe.objective:
        raise ValueError(
            f"objective {recipe.objective!r} needs images and only features are here: "
            "set recipe.objective to ce or sc, or train on images"
        )
    objective = factory.build(network, z.shape[1], n_classes, seed, recipe).to(z.device)
    return objective, fit_heads(objective, z, y, recipe, seed)


def fit_heads(objective: Strategy, z: Tensor, y: Tensor, recipe: Recipe, seed: int) -> list[float]:
    """Train an objective on features by the recipe; see :func:`heads_on_features`."""
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
