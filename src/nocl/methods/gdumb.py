"""GDumb: greedy sampler and dumb learner (Prabhu et al., ECCV 2020). A baseline that does not learn online.

The stream only fills a class-balanced memory (``BalancedMemory``). For a prediction, a network is trained on the memory
alone, 30 epochs of cross-entropy; it is discarded when the memory changes. It depends on the memory, the base network
and the seed, never on earlier trainings, so it is a cached value and not part of the state.

``init="base"`` starts each training from the base session's network with a new head, following the paper's
"pre-training on the base classes"; ``init="scratch"`` starts from a random network as GDumb itself does, and
then the base session only fills the memory.

Differences from the reference codes (drimpossible/GDumb; RaptorMai/online-continual-learning, agents/gdumb.py):

* The learner is the second code's, which the paper builds on: SGD at a constant rate, batches of 10, gradients clipped
  to norm 10, no augmentation. ``augment`` and ``cutmix`` (the probability of mixing a batch) are those of the first
  code.
* The last, shorter batch of an epoch is used unless it is a single image; the code drops it.
* Of equally large classes a random one loses an image; the code always takes the oldest.
* More classes than slots is an error; in the code the memory then freezes and evicted classes still lower the quota.
* The result is that of the last epoch. The first code's log reports the best epoch on test data.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl import nets
from nocl.learner import Common, Learner
from nocl.nets.heads import GrowingLinear
from nocl.plumbing.parameters import Count, Fraction, Natural, NonNegative, Positive, Range
from nocl.plumbing.progress import track
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Trained
from nocl.pretrain.augment import Augment, cutmix_box
from nocl.stats.linalg import Cached
from nocl.stats.memory import BalancedMemory, below


class GDumb(Learner):
    """A balanced memory, and a network trained on it for each prediction.

    Parameters
    ----------
    memory_size
        Images kept, 1 or more; 1,000 and 2,000 in the NO-CL paper.
    init
        Each training starts from the ``base`` session's network, or from ``scratch`` as in the paper.
    epochs
        Epochs over the memory, 0 or more; 30 in the reference code.
    lr
        Learning rate, above 0; 0.1 in the reference code.
    weight_decay
        Weight decay, 0 or more.
    batch_size
        Images of a step, 2 or more; 10 in the reference code.
    clip
        Largest norm of a gradient, above 0; 10 in both codes.
    augment
        Augmentation, by name: see :class:`nocl.pretrain.augment.Augment`.
    cutmix
        Probability that a batch is mixed by CutMix, from 0 to 1; 0.5 in the authors' code.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    stores_exemplars = True
    check_params: ClassVar[dict[str, JSON]] = {"memory_size": 60, "epochs": 3}

    def __init__(
        self,
        *,
        memory_size: Count = 1000,
        init: Literal["base", "scratch"] = "base",
        epochs: Natural = 30,
        lr: Positive = 0.1,
        weight_decay: NonNegative = 0.0,
        batch_size: Annotated[int, Range(2)] = 10,
        clip: Positive = 10.0,
        augment: str = "none",
        cutmix: Fraction = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.memory_size, self.init, self.epochs, self.lr = memory_size, init, epochs, lr
        self.weight_decay, self.batch_size, self.clip = weight_decay, batch_size, clip
        self.augment, self.cutmix = augment, cutmix
        self._augment = Augment(augment)
        self.memory = BalancedMemory(memory_size, self.image_size)
        self._model: Cached[nn.Sequential] = Cached()
        if init == "scratch":  # the base network would never be used
            self.full_recipe = replace(self.full_recipe, epochs=0)

    def kept(self) -> str:
        return f"up to {self.memory_size} of the images themselves, and a network trained on them"

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        for x, y in track(base, "filling the memory"):
            self.observe(x, y)

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.scale(x)  # refuses images of another type or size
        self.memory.update(x, self.columns(y), self.draw)

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        depends_on = (self.memory.images, self.memory.columns, *self.network.parameters(), *self.network.buffers())
        scores: Tensor = self._model.get(depends_on, self.train_on_memory)(self.prepare(x))
        absent = self.memory.counts(len(self.classes_)) == 0
        return scores.masked_fill(absent, float("-inf"))

    # --- training on the memory -------------------------------------------------------------------------------------

    def train_on_memory(self) -> nn.Sequential:
        """Network and head after all epochs on the memory; the same for the same memory, base network and seed."""
        draw = generator(self.seed, "memory training")
        network = copy.deepcopy(self.network)
        if self.init == "scratch":
            fresh = nets.build(self.backbone, seed=self.seed).state_dict()
            network.load_state_dict(fresh | {"mean": network.mean, "std": network.std})
        head = GrowingLinear(network.feature_dim(self.image_size)).to(self.device)
        head.grow(len(self.classes_), draw)
        model = nn.Sequential(network, head)
        optimizer = torch.optim.SGD(model.parameters(), self.lr, weight_decay=self.weight_decay)
        model.train()
        for _ in track(range(self.epochs), "training on the memory"):
            self._epoch(model, optimizer, draw)
        return model.eval()

    def _epoch(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> None:
        slots = torch.randperm(len(self.memory), generator=draw).to(self.device)
        for part in slots.split(self.batch_size):
            if len(part) == 1:
                continue  # batch normalisation has no variance to learn from one image
            images = self._augment(self.scale(self.memory.images[part]), draw)
            with torch.enable_grad():
                loss = self._loss(model, images, self.memory.columns[part], draw)
                optimizer.zero_grad()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()

    def _loss(self, model: nn.Module, images: Tensor, columns: Tensor, draw: torch.Generator) -> Tensor:
        if not (self.cutmix and float(torch.rand((), generator=draw)) < self.cutmix):
            return F.cross_entropy(model(self.network.normalise(images)), columns)
        mixed, partner, share = cutmix(images, draw)
        scores = model(self.network.normalise(mixed))
        other = F.cross_entropy(scores, columns[partner])
        return share * F.cross_entropy(scores, columns) + (1 - share) * other


def cutmix(images: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Images with a box taken from another image of the batch, whose index is the partner, and the share left."""
    side = images.shape[-1]
    partner = torch.randperm(len(images), generator=draw).to(images.device)
    wanted = float(torch.rand((), generator=draw))  # Beta(1, 1)
    top, left, bottom, right = cutmix_box(wanted, (below(side, draw), below(side, draw)), side)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[partner][:, :, top:bottom, left:right]
    return mixed, partner, 1 - (bottom - top) * (right - left) / side**2
