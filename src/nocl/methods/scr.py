"""SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021). Learns by contrast, predicts the nearest mean.

For each batch (x, y), once, with up to 100 random images of the memory:

    X = [memory; x],  X' = heavy(X),  z = head(f(X)),  z' = head(f(X')), of length 1
    theta <- theta - lr gradient of SupCon({z, z'}, Y, tau)                      (``supcon``)

then the batch is offered to the reservoir. Predictions do not use the head: the features of a class's stored images,
scaled to length 1, are averaged and scaled to length 1 again, and the nearest mean (the largest cosine) is predicted.
The means are computed from the memory when they are needed and cached until network or memory changes; they are not
part of the state.

The preset ``ft`` freezes the backbone. Then only the head learns, and predictions do not use it; they change with the
memory alone: nearest mean of stored exemplars on frozen features.

Differences from the reference code (RaptorMai/online-continual-learning, agents/scr.py):

* A class without an exemplar is never predicted. The code gives it a random mean.
* Features of exemplars are computed in batches without gradient; the code computes them one by one with gradient.
* The base session is supervised contrast on the base images alone (recipe ``sc``, temperature 0.1), then one pass fills
  the memory; the code replays from the memory in all base epochs, which makes its counter wrong (see ``_replay.py``).
* The review trick of SCR's paper is left out, because the NO-CL paper uses the code's defaults, where it is off.
"""

from dataclasses import replace
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl.methods._replay import CHECK_PARAMS, ReplayLearner, ReplayParameters
from nocl.plumbing.parameters import Count, Positive
from nocl.plumbing.seeding import scoped
from nocl.plumbing.types import JSON
from nocl.pretrain import Contrastive, Recipe, Trained
from nocl.pretrain.augment import Augment
from nocl.pretrain.supcon import supcon
from nocl.stats.linalg import Cached
from nocl.stats.memory import gradients

_HEAVY = Augment("heavy")
_AT_ONCE = 100  # exemplars through the network for the means
_EMBEDDING = 128
_NO_EXEMPLAR = -2.0  # below every cosine


class SCR(ReplayLearner):
    """Supervised contrastive replay.

    Parameters
    ----------
    replay_batch
        Images of the memory beside each batch, 1 or more; 100 in the paper.
    mem_iters
        Steps for each batch, 1 or more, each with other images of the memory; 1 in the paper.
    tau
        Temperature of the contrastive loss, above 0; 0.1 in the NO-CL paper.
    **common
        ``memory_size`` (images kept, 1 or more), ``lr`` (learning rate, 0 or more), ``freeze_backbone`` (train the
        heads alone): see :class:`~nocl.methods._replay.ReplayLearner`. ``backbone``, ``weights``, ``recipe``,
        ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    base_recipe = Recipe(objective="sc")
    presets: ClassVar[dict[str, dict[str, JSON]]] = {"ft": {"freeze_backbone": True}}
    check_params = CHECK_PARAMS

    def __init__(
        self,
        *,
        replay_batch: Count = 100,
        mem_iters: Count = 1,
        tau: Positive = 0.1,
        **common: Unpack[ReplayParameters],
    ) -> None:
        super().__init__(**common)
        self.replay_batch, self.mem_iters, self.tau = replay_batch, mem_iters, tau
        if "head" not in self.recipe:
            self.full_recipe = replace(self.full_recipe, head=(self.feature_dim, _EMBEDDING))
        hidden, out = self.full_recipe.head
        with scoped(self.seed):
            self.head = nn.Sequential(nn.Linear(self.feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, out))
        self._means: Cached[Tensor] = Cached()

    def take_heads(self, trained: Trained) -> None:
        if isinstance(trained.objective, Contrastive):
            self.head.load_state_dict(trained.objective.heads["vanilla"].state_dict())

    def observe(self, x: Tensor, y: Tensor) -> None:
        new, columns = self.scale(x), self.columns(y)
        self.set_training(True)
        for _ in range(self.mem_iters if len(self.memory) else 0):
            slots = self.memory.random(self.replay_batch, self.draw)
            raw = torch.cat([self.scale(self.memory.images[slots]), new])
            loss = self.loss(raw, torch.cat([self.memory.columns[slots], columns]))
            self.descend(gradients(loss, self.learning_parameters()))
        self.memory.update(x, columns, self.draw)
        self.eval()

    def loss(self, raw: Tensor, columns: Tensor) -> Tensor:
        """SupCon of images in [0, 1] and one heavy view of each; the views pass the network one after the other."""
        views = (raw, _HEAVY(raw, self.draw))
        z = torch.cat([self.head(self.encode(self.network.normalise(view))) for view in views])
        return supcon(z, columns.repeat(2), self.tau)

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        self.eval()
        depends_on = (self.classes_, *self.memory.buffers(), *self.network.parameters(), *self.network.buffers())
        means = self._means.get(depends_on, self.class_means)
        scores = F.normalize(self.network(self.prepare(x)), dim=1) @ means.T
        absent = self.memory.counts(len(self.classes_)) == 0
        return scores.masked_fill(absent, _NO_EXEMPLAR)

    def class_means(self) -> Tensor:
        """Each class's mean exemplar feature, of length 1 [K, d]; 0 where there is no exemplar."""
        slots = torch.arange(len(self.memory), device=self.device)
        total = torch.zeros(len(self.classes_), self.feature_dim, device=self.device)
        for part in slots.split(_AT_ONCE):
            images, columns = self.recall(part)
            total.index_add_(0, columns, F.normalize(self.network(images), dim=1))
        return F.normalize(total, dim=1)
