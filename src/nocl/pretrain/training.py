"""The base-training loop: resumable after every epoch, cached by its settings, on one device or several."""

import copy
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from filelock import FileLock
from torch import Tensor, distributed

from nocl.nets import PRETRAINED, Backbone, StoredFeatures, load_pretrained
from nocl.plumbing.files import digest, file_digest, read_tensors, write_tensors
from nocl.plumbing.progress import track
from nocl.plumbing.registry import by_name
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, BaseSession, Batch
from nocl.pretrain.augment import Augment
from nocl.pretrain.devices import Worker, current
from nocl.pretrain.heads import ON_FEATURES, kept_heads
from nocl.pretrain.objectives import OBJECTIVES, Extractor, Objective
from nocl.pretrain.recipe import Recipe
from nocl.pretrain.steps import check_finite, learning_rate, optimizer_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)
COMPILE_PAYS_FROM = 300_000  # forward passes of images; with fewer, compiling takes longer than it saves
_SLOTS = {"velocity": "momentum_buffer", "first": "exp_avg", "second": "exp_avg_sq", "steps": "step"}  # as stored


class WrongBaseError(ValueError):
    """A checkpoint that was trained on other classes, data or settings than requested."""


@dataclass(frozen=True)
class Trained:
    """The result of base training besides the network's new weights."""

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

    Finished networks are cached in ``workdir`` under their key, an unfinished one after each epoch; an interrupted
    training continues there with bit-identical results. With ``weights``, the network is loaded and not trained;
    projection and heads are then trained on its features, if ``train_heads``. ``pretrained`` means the weights that
    belong to the network's name. Stored features (``features:D``) have no network to train or load.
    """
    if isinstance(network, StoredFeatures):
        if weights is not None:
            raise ValueError(f"stored features take no weights ({weights.name}): a network has made them already")
        return _heads_of_stored(network, base, recipe, classes, seed, train_heads, workdir)
    origin = {} if weights is None else load_given(network, weights, name, allowed=set(classes))
    dim = network.feature_dim(image_size)
    training = _Training(network, dim, recipe, classes, seed, frozen=weights is not None)
    if weights is not None and not train_heads:
        return Trained(training.objective, {**origin, "recipe": None}, [])
    described = base.describe() if isinstance(base, BaseSession) else None
    key: dict[str, JSON] = {
        "base": described, "backbone": name, "image_size": image_size, "seed": seed,
        "recipe": training.recipe_json(), "classes": list(classes), **origin,
    }  # fmt: skip
    if current().precision != "32-true":
        key["precision"] = current().precision
    kind = "base" if weights is None else "heads"
    path = None if workdir is None or described is None else workdir / f"{kind}-{digest(key)}.safetensors"
    with _alone(path if current().nodes == 1 else None):  # nodes that share a folder train together
        losses = training.run(base, path, key)
    return Trained(training.objective, {**origin, "key": digest(key), "recipe": training.recipe_json()}, losses)


def _heads_of_stored(
    network: StoredFeatures, base: Iterable[Batch], recipe: Recipe, classes: tuple[int, ...], seed: int,
    train_heads: bool, workdir: Path | None,
) -> Trained:  # fmt: skip
    """Base training on stored features: only projection and heads, if ``train_heads``."""
    described = base.describe() if isinstance(base, BaseSession) else None
    made_by = (described or {}).get("features")
    origin: dict[str, JSON] = dict(made_by) if isinstance(made_by, dict) else {}
    if not train_heads:
        return Trained(Objective(network, network.dim, len(classes), seed), {**origin, "recipe": None}, [])
    wanted = recipe.heads_to_json()
    key: dict[str, JSON] = {"base": described, "seed": seed, "recipe": wanted, "classes": list(classes)}
    path = None if workdir is None or described is None else workdir / f"heads-{digest(key)}.safetensors"
    target = {label: i for i, label in enumerate(classes)}

    def features() -> tuple[Tensor, Tensor]:
        batches = list(_epoch_of(base, 0))
        z = torch.cat([network.read(x, 0) for x, _ in batches])
        return z, torch.tensor([target[int(label)] for _, y in batches for label in y], device=z.device)

    with _alone(path):
        objective, losses = kept_heads(path, key, network, features, recipe, n_classes=len(classes), seed=seed)
    return Trained(objective, {**origin, "key": digest(key), "recipe": wanted, "heads": ON_FEATURES}, losses)


def load_given(network: Backbone, weights: Path, name: str, *, allowed: set[int] | None = None) -> dict[str, JSON]:
    """Load weights from a file, or those that belong to the network's name if ``weights`` is ``pretrained``."""
    if str(weights) != PRETRAINED:
        return load_weights(network, weights, allowed=allowed)
    origin = load_pretrained(network, name)
    if not origin:
        raise WrongBaseError(f"the network {name!r} has no weights of its own: give a file, or train it")
    return origin


def load_weights(network: Backbone, path: Path, *, allowed: set[int] | None = None) -> dict[str, JSON]:
    """Load a backbone from a safetensors file; refuse it if its ``classes`` are not all among the allowed ones.

    Tensor names are the network's own, with or without the prefix ``network.``; other tensors are ignored.
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


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Let one process train the network at ``path``; other processes wait and then load it."""
    if path is None or path.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    with FileLock(lock):
        yield
        lock.unlink(missing_ok=True)  # later processes find the network; after a failure the lock file stays


class _Training:
    """One training: network, objective, optimiser, schedule, and saving all of them after each epoch."""

    def __init__(
        self, network: Backbone, dim: int, recipe: Recipe, classes: tuple[int, ...], seed: int, *, frozen: bool,
        worker: Worker | None = None,
    ) -> None:  # fmt: skip
        factory = by_name(recipe.objective, OBJECTIVES, "objective")
        self.device = network.mean.device
        self.objective = factory.build(network, dim, len(classes), seed, recipe).to(self.device)
        self.network, self.dim, self.recipe, self.seed, self.frozen = network, dim, recipe, seed, frozen
        self.worker = worker
        self.epochs = recipe.head_epochs if frozen else recipe.epochs
        self.target = {label: i for i, label in enumerate(classes)}
        self.named = dict(self.objective.named_parameters(prefix="objective"))
        if not frozen:
            self.named |= dict(network.named_parameters(prefix="network"))
        self.optimizer = optimizer_of(self.named.values(), recipe)
        self.augment = Augment(recipe.augment)
        self.rounds: dict[int, list[tuple[Tensor, Tensor]]] = {}  # features of a frozen network, by round

    def recipe_json(self) -> dict[str, JSON]:
        """The settings of the recipe that determine the result."""
        return self.recipe.heads_to_json() if self.frozen else self.recipe.to_json()

    def run(self, base: Iterable[Batch], path: Path | None, key: dict[str, JSON]) -> list[float]:
        """Train to the end, continuing an interrupted run; returns the mean loss of each epoch."""
        if path is not None and path.exists():
            return self._restore(path, key)
        compute = current()
        if self.worker is None and compute.processes > 1 and not self.frozen:
            return self._run_in_processes(base, path, key)
        if self.worker is None:
            self.worker = Worker(None if compute.precision == "32-true" else compute.fabric(self.device))
        partial = None if path is None else path.with_suffix(".partial.safetensors")
        losses: list[float] = []
        if self.recipe.normalize and not self.frozen:
            _measure_normalisation(self.network, base)
        if partial is not None and partial.exists():
            losses = self._restore(partial, key)
            log.info("continuing base training after epoch %d", len(losses))
        self._train(base, losses, partial, key)
        if path is not None and partial is not None and self.worker.writes:
            self._store(path, key, losses)
            partial.unlink(missing_ok=True)
        return losses

    def _run_in_processes(self, base: Iterable[Batch], path: Path | None, key: dict[str, JSON]) -> list[float]:
        """Train in this node's processes, which write a file; then read the file."""
        with tempfile.TemporaryDirectory(prefix="nocl-") as folder:
            path = path or Path(folder) / "network.safetensors"
            task = _Task(self.network, self.dim, self.recipe, tuple(self.target), self.seed, base, path, key)
            current().fabric(self.device).launch(task)
            return self._restore(path, key)

    def _train(self, base: Iterable[Batch], losses: list[float], partial: Path | None, key: dict[str, JSON]) -> None:
        assert self.worker is not None
        self.objective.train()
        model = self._prepare_model(base)
        n_batches = _count(base)
        optimizer = self.worker.prepare(self.optimizer)
        for epoch in range(len(losses), self.epochs):
            start = perf_counter()
            loss, images = self._epoch(model, optimizer, base, epoch, n_batches)
            losses.append(loss)
            pace = images / (perf_counter() - start)  # an image counts once, however many views it has
            log.info("base epoch %d/%d: loss %.4f, %.0f images/s", epoch + 1, self.epochs, loss, pace)
            if partial is not None and self.worker.writes:
                self._store(partial, key, losses)
        self.optimizer.zero_grad(set_to_none=True)
        self.network.eval()
        self.objective.eval()
        self.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def passes(self, base: Iterable[Batch]) -> int:
        """Forward passes in one epoch: the number of images times the views of each."""
        images = sum(len(batch.y) for batch in _epoch_of(base, 0))
        draw = generator(self.seed, "views to count")
        first = next(self._images(base, 0, draw), None)
        if first is None:
            return images
        return round(images * len(self.objective.views(*first, draw)[0]) / len(first[1]))

    def _prepare_model(self, base: Iterable[Batch]) -> Extractor:
        assert self.worker is not None
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wanted = self.recipe.compile
        if wanted is None:
            wanted = not self.frozen and self.passes(base) * self.epochs >= COMPILE_PAYS_FROM
        return self.worker.share(torch.compile(self.network) if wanted else self.network)  # type: ignore[arg-type]

    def _epoch(
        self, model: Extractor, optimizer: torch.optim.Optimizer, base: Iterable[Batch], epoch: int, n_batches: int
    ) -> tuple[float, int]:
        """The mean loss and the number of images."""
        assert self.worker is not None
        total, seen = 0.0, 0
        self.objective.epoch = epoch
        split = type(self.objective).loss is Objective.loss  # features and loss can be computed separately
        batches = self._kept(model, base, epoch) if self.frozen and split else self._passed(model, base, epoch)
        progress = track(batches, f"base epoch {epoch + 1}/{self.epochs}", n_batches, self.epochs - epoch - 1)
        for step, (loss, n) in enumerate(progress):
            check_finite(loss, epoch, self.recipe)
            done = epoch * n_batches + step
            self.optimizer.param_groups[0]["lr"] = learning_rate(self.recipe, epoch, done, self.epochs * n_batches)
            self.worker.step(loss, optimizer)
            total, seen = total + loss.item() * n, seen + n
        return total / max(seen, 1), seen

    def _images(self, base: Iterable[Batch], epoch: int, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented images in [0, 1] and labels 0 .. n - 1."""
        for x, y in _epoch_of(base, epoch):
            if len(y) == 1 and not (self.frozen and not self.recipe.projection):
                continue  # one image has no variance for batch normalisation
            images = self.augment(x.to(self.device).float() / 255, draw)
            targets = torch.tensor([self.target[int(label)] for label in y], device=self.device)
            yield images.contiguous(memory_format=torch.channels_last), targets

    def _passed(self, model: Extractor, base: Iterable[Batch], epoch: int) -> Iterator[tuple[Tensor, int]]:
        """The loss and size of each batch, computed from images."""
        assert self.worker is not None
        self.network.train(not self.frozen)
        draw = generator(self.seed, "augment", epoch)
        for images, targets in self._images(base, epoch, draw):
            with self.worker.autocast():
                loss = self.objective.loss(model, images, targets, draw)
            yield loss, len(targets)

    def _kept(self, model: Extractor, base: Iterable[Batch], epoch: int) -> Iterator[tuple[Tensor, int]]:
        """The loss and size of each batch, from the frozen network's features; computed once in each round."""
        index = epoch % self.recipe.head_rounds
        if index not in self.rounds:
            self.rounds[index] = self._features(model, base, index)
        batches = self.rounds[index]
        for i in torch.randperm(len(batches), generator=generator(self.seed, "order", epoch)).tolist():
            z, targets = batches[i]
            yield self.objective.terms(z, targets), len(targets)

    @torch.no_grad()
    def _features(self, model: Extractor, base: Iterable[Batch], index: int) -> list[tuple[Tensor, Tensor]]:
        self.network.eval()
        draw = generator(self.seed, "augment", index)
        kept = []
        for images, targets in track(self._images(base, index, draw), "features for the heads", _count(base)):
            viewed, wanted = self.objective.views(images, targets, draw)
            kept.append((model(self.objective.normalise(viewed)), wanted))
        return kept

    def _store(self, path: Path, key: dict[str, JSON], losses: list[float]) -> None:
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"objective.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        for name, parameter in self.named.items():
            for kind, slot in _SLOTS.items():
                value = self.optimizer.state[parameter].get(slot)
                if value is not None:
                    tensors[f"{kind}.{name}"] = value
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
        for kind, slot in _SLOTS.items():
            for name, tensor in _under(f"{kind}.", tensors).items():
                device = tensor.device if slot == "step" else self.named[name].device
                self.optimizer.state[self.named[name]][slot] = tensor.to(device)
        losses = header.get("losses")
        self.network.eval()
        self.objective.eval()
        return [float(loss) for loss in losses] if isinstance(losses, list) else []  # type: ignore[arg-type]


class _Task:
    """What each of several processes does. One object, because Fabric inspects separate arguments."""

    def __init__(
        self, network: Backbone, dim: int, recipe: Recipe, classes: tuple[int, ...], seed: int,
        base: Iterable[Batch], path: Path, key: dict[str, JSON],
    ) -> None:  # fmt: skip
        self.settings, self.work = (network, dim, recipe, classes, seed), (base, path, key)

    def __call__(self, fabric: "Fabric") -> None:
        network, *rest = self.settings
        network = copy.deepcopy(network).to(fabric.device)  # the original is in memory shared by all processes
        training = _Training(network, *rest, frozen=False, worker=Worker(fabric))  # type: ignore[arg-type]
        training.run(*self.work)
        fabric.barrier()  # wait until all have written
        if distributed.is_initialized():
            distributed.destroy_process_group()  # threads left running may abort a process when it ends


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
