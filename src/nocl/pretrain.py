"""Base-session training: the one place where epochs are allowed. Resumable after every epoch, cached by content.

A *recipe* says everything that decides the result; an *objective* owns the heads and turns a batch into a loss. The
loop knows neither. This module does not evaluate and never sees a novel class.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl.augment import Augment
from nocl.batch import JSON, BaseSession, Batch
from nocl.files import digest, file_digest, read_tensors, write_tensors
from nocl.lookup import UnknownNameError, by_name, unknown
from nocl.nets import Backbone
from nocl.nets.heads import GrowingLinear
from nocl.progress import track
from nocl.seeding import generator

log = logging.getLogger(__name__)
COMPILE_PAYS_FROM = 300_000  # images through the network, below which compiling costs more than it saves


class WrongBaseError(ValueError):
    """A checkpoint that was trained on other classes, data or settings than asked for."""


@dataclass(frozen=True)
class Recipe:
    """How the base session trains. Defaults are the paper's: plain SGD, constant rate, 100 epochs."""

    objective: str = "ce"
    epochs: int = 100
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"  # or "onecycle": warm-up and cosine decay, momentum at least 0.9
    augment: str = "none"
    normalize: bool = False  # by mean and std of the base images
    head_epochs: int = 2  # with given weights, epochs for the heads alone
    compile: bool | None = None  # None: where it pays

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "onecycle"):
            raise UnknownNameError(unknown(self.schedule, ("constant", "onecycle"), "schedule"))
        if self.epochs < 0 or self.head_epochs < 0:
            raise ValueError(f"epochs must be 0 or more, not {min(self.epochs, self.head_epochs)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be above 0, not {self.lr}")
        by_name(self.objective, OBJECTIVES, "objective")
        Augment(self.augment)

    def with_changes(self, changes: Mapping[str, JSON]) -> "Recipe":
        """The same recipe with some values replaced; a wrong name is an error that lists the right ones."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise UnknownNameError(unknown(name, known, "recipe setting"))
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, JSON]:
        """Everything that decides the result; ``compile`` only changes the speed."""
        values = asdict(self)
        del values["compile"]
        return values


class Objective(nn.Module):
    """A training loss and the heads it needs, which live only in the base session."""

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int) -> None:
        super().__init__()

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
        """Mean loss of images in [0, 1], not yet normalised, with labels 0 .. n_classes - 1."""
        raise NotImplementedError


class CrossEntropy(Objective):
    """Softmax cross-entropy on a linear head."""

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int) -> None:
        super().__init__(network, dim, n_classes, seed)
        self.head = GrowingLinear(dim)
        self.head.grow(n_classes, generator(seed, "head"))
        self.normalise = network.normalise

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
        return F.cross_entropy(self.head(network(self.normalise(x))), y)


OBJECTIVES: dict[str, Callable[[Backbone, int, int, int], Objective]] = {"ce": CrossEntropy}


@dataclass(frozen=True)
class Trained:
    """What base training leaves beside the network's new weights."""

    objective: Objective
    origin: dict[str, JSON]  # recipe, key or weights file: stored in every result
    losses: list[float]  # mean loss of each epoch trained


def train_base(
    network: Backbone,
    base: Iterable[Batch],
    recipe: Recipe,
    *,
    classes: tuple[int, ...],
    image_size: int,
    seed: int,
    name: str = "",
    weights: Path | None = None,
    workdir: Path | None = None,
    train_heads: bool = True,
) -> Trained:
    """Train ``network`` in place, or load it.

    ``workdir`` keeps finished networks by key and an unfinished one after each epoch; a killed training continues
    there with the same bits. ``weights`` skips training of the network and, if wanted, trains the heads alone.
    """
    dim = network.feature_dim(image_size)
    objective = by_name(recipe.objective, OBJECTIVES, "objective")(network, dim, len(classes), seed).to(
        network.mean.device
    )
    if weights is not None:
        origin = load_weights(network, weights, allowed=set(classes))
        losses = []
        if train_heads:
            recipe = replace(recipe, epochs=recipe.head_epochs, normalize=False)
            losses = _Training(network, objective, recipe, classes, seed, frozen=True).run(base, None, {})
        return Trained(objective, {**origin, "recipe": recipe.to_json() if train_heads else None}, losses)
    described = base.describe() if isinstance(base, BaseSession) else None
    key: dict[str, JSON] = {
        "base": described, "backbone": name, "image_size": image_size, "seed": seed, "recipe": recipe.to_json(),
        "classes": list(classes),
    }  # fmt: skip
    path = None if workdir is None or described is None else workdir / f"base-{digest(key)}.safetensors"
    training = _Training(network, objective, recipe, classes, seed, frozen=False)
    losses = training.run(base, path, key)
    return Trained(objective, {"key": digest(key), "recipe": recipe.to_json()}, losses)


def load_weights(network: Backbone, path: Path, *, allowed: set[int] | None = None) -> dict[str, JSON]:
    """Load a backbone from a safetensors file; refuse one whose ``classes`` reach beyond the allowed ones.

    Tensor names are the network's own, with or without the prefix ``network.``; a head in the file is left aside.
    """
    tensors, header = read_tensors(path)
    listed = header.get("classes")
    trained_on = {label for label in listed if isinstance(label, int)} if isinstance(listed, list) else set()
    if allowed is not None and not trained_on <= allowed:
        leaked = sorted(trained_on - allowed)
        raise WrongBaseError(
            f"{path.name} was trained on {len(leaked)} classes that this stream brings later ({leaked[:5]} ...): "
            "use the order and partition it was trained for"
        )
    tensors = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
    for buffer in ("mean", "std"):
        if buffer not in tensors and isinstance(header.get(buffer), list):
            tensors[buffer] = torch.tensor(header[buffer]).view(3, 1, 1)
    wanted = network.state_dict()
    for tensor_name, tensor in wanted.items():
        if tensor_name in ("mean", "std"):
            tensors.setdefault(tensor_name, tensor)
        elif tensor_name not in tensors:
            raise WrongBaseError(f"{path.name} has no {tensor_name!r}: it holds another network")
        elif tensors[tensor_name].shape != tensor.shape:
            shape = list(tensors[tensor_name].shape)
            raise WrongBaseError(f"{path.name}: {tensor_name} is {shape}, this network's is {list(tensor.shape)}")
    network.load_state_dict({tensor_name: tensors[tensor_name] for tensor_name in wanted})
    return {"weights": path.name, "sha256": file_digest(path)}


class _Training:
    """One training: network, heads, optimiser and schedule, and how to write them down after an epoch."""

    def __init__(
        self,
        network: Backbone,
        objective: Objective,
        recipe: Recipe,
        classes: tuple[int, ...],
        seed: int,
        *,
        frozen: bool,
    ) -> None:
        self.network, self.objective, self.recipe, self.seed, self.frozen = (
            network,
            objective,
            recipe,
            seed,
            frozen,
        )
        self.target = {label: i for i, label in enumerate(classes)}
        self.named = dict(objective.named_parameters(prefix="objective"))
        if not frozen:
            self.named |= dict(network.named_parameters(prefix="network"))
        momentum = max(recipe.momentum, 0.9) if recipe.schedule == "onecycle" else recipe.momentum
        self.optimizer = torch.optim.SGD(
            list(self.named.values()),
            recipe.lr,
            momentum,
            weight_decay=recipe.weight_decay,
            nesterov=momentum > 0,
        )
        self.augment = Augment(recipe.augment)

    def run(self, base: Iterable[Batch], path: Path | None, key: dict[str, JSON]) -> list[float]:
        """All epochs that are not done yet. Returns the mean loss of every epoch."""
        partial = None if path is None else path.with_suffix(".partial.safetensors")
        losses: list[float] = []
        if path is not None and path.exists():
            return self._restore(path, key)
        if self.recipe.normalize:
            _measure_normalisation(self.network, base)
        if partial is not None and partial.exists():
            losses = self._restore(partial, key)
            log.info("continuing base training after epoch %d", len(losses))
        model = self._prepare_model(base)
        n_batches = _count(base)
        for epoch in range(len(losses), self.recipe.epochs):
            losses.append(self._epoch(model, base, epoch, n_batches))
            log.info("base epoch %d/%d: loss %.4f", epoch + 1, self.recipe.epochs, losses[-1])
            if partial is not None:
                self._store(partial, key, losses)
        self.network.eval()
        self.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if path is not None and partial is not None:
            self._store(path, key, losses)
            partial.unlink(missing_ok=True)
        return losses

    def _prepare_model(self, base: Iterable[Batch]) -> nn.Module:
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wanted = self.recipe.compile
        if wanted is None:
            images = sum(len(batch.y) for batch in _epoch_of(base, 0)) * self.recipe.epochs
            wanted = images >= COMPILE_PAYS_FROM and not self.frozen
        return torch.compile(self.network) if wanted else self.network  # type: ignore[return-value]

    def _epoch(self, model: nn.Module, base: Iterable[Batch], epoch: int, n_batches: int) -> float:
        self.network.train(not self.frozen)
        draw = generator(self.seed, "augment", epoch)
        device = self.network.mean.device
        total, seen = 0.0, 0
        batches = track(_epoch_of(base, epoch), f"base epoch {epoch + 1}/{self.recipe.epochs}", n_batches)
        for step, (x, y) in enumerate(batches):
            if len(y) == 1 and not self.frozen:
                continue  # batch normalisation has no variance to learn from one image
            images = self.augment(x.to(device).float() / 255, draw).contiguous(memory_format=torch.channels_last)
            targets = torch.tensor([self.target[int(label)] for label in y], device=device)
            self.optimizer.param_groups[0]["lr"] = self._lr(epoch * n_batches + step, self.recipe.epochs * n_batches)
            loss = self.objective.loss(model, images, targets, draw)
            if not bool(torch.isfinite(loss)):
                raise FloatingPointError(
                    f"loss is {loss.item()} in base epoch {epoch + 1}; try a smaller lr than {self.recipe.lr}"
                )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total, seen = total + loss.item() * len(y), seen + len(y)
        return total / max(seen, 1)

    def _lr(self, step: int, steps: int) -> float:
        """Constant, or one cycle: linear warm-up over the first 30 % of steps, then a cosine to zero."""
        if self.recipe.schedule == "constant":
            return self.recipe.lr
        warm = max(1, round(0.3 * steps))
        if step < warm:
            return self.recipe.lr * (step + 1) / warm
        return self.recipe.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    def _store(self, path: Path, key: dict[str, JSON], losses: list[float]) -> None:
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"objective.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        for name, parameter in self.named.items():
            velocity = self.optimizer.state[parameter].get("momentum_buffer")
            if velocity is not None:
                tensors[f"velocity.{name}"] = velocity
        write_tensors(
            path,
            tensors,
            {"kind": "nocl base network", "key": key, "losses": list(losses), "classes": list(self.target)},
        )

    def _restore(self, path: Path, key: dict[str, JSON]) -> list[float]:
        tensors, header = read_tensors(path)
        if header.get("key") != key:
            raise WrongBaseError(f"{path} was trained with other settings than its name says; delete it to train again")
        self.network.load_state_dict(_under("network.", tensors))
        self.objective.load_state_dict(_under("objective.", tensors))
        for name, velocity in _under("velocity.", tensors).items():
            self.optimizer.state[self.named[name]]["momentum_buffer"] = velocity.to(self.named[name].device)
        losses = header.get("losses")
        self.network.eval()
        return [float(loss) for loss in losses] if isinstance(losses, list) else []  # type: ignore[arg-type]


def _epoch_of(base: Iterable[Batch], index: int) -> Iterator[Batch]:
    return base.epoch(index) if isinstance(base, BaseSession) else iter(base)


def _count(base: Iterable[Batch]) -> int:
    return len(base) if isinstance(base, Sized) else sum(1 for _ in _epoch_of(base, 0))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _measure_normalisation(network: Backbone, base: Iterable[Batch]) -> None:
    total, squares, pixels = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 0
    for x, _ in _epoch_of(base, 0):
        values = x.double() / 255
        total, squares = total + values.sum((0, 2, 3)), squares + values.square().sum((0, 2, 3))
        pixels += values[:, 0].numel()
    mean = total / pixels
    network.mean.copy_(mean.view(3, 1, 1))
    network.std.copy_((squares / pixels - mean.square()).clamp_min(1e-6).sqrt().view(3, 1, 1))
