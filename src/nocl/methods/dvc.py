"""DVC: dual view consistency (Gu et al., CVPR 2022). Agreement of two views, and replay by gradient growth.

Each image is seen raw and in a heavy view. With logits z, z' of the views and joint logits q = QNet([z; z']),

    L = CE(z, y) and CE(z', y), averaged
        + 1/3 sum of the negative entropies of the average predictions of z, z' and q
        + w mean |softmax q - softmax z|, |softmax q - softmax z'|          (``dual_view``)

For each batch, once: g = gradient of L; of 50 random images of the memory take the 10 whose last-layer gradient
|softmax z - onehot|_1 |f|_1 grows most under the step theta - lr g (MGI); theta <- theta - lr (g + gradient of L on
those); then the reservoir is offered the batch. Inference uses z alone, over the classes met.

The preset ``ft`` freezes the backbone: the linear head and QNet alone learn online.

Differences from the reference code (YananGu/DVC):

* Classifier and QNet have rows for the classes met and grow. The code fixes them at the data set's class count, where
  the entropy term gives probability to classes that have not arrived yet.
* Every image draws its own heavy view; the code draws one for the whole batch. The heavy view of replayed images is
  drawn after they are chosen, since scores look at the raw view only.
* Scores are computed in eval mode; the code computes them in train mode, which changes the network's batch statistics.
* The base session is the dual-view loss without replay, then one pass fills the memory (see ``_replay.py``). With
  given weights, head and QNet are trained on the frozen network. No run ever writes into a base checkpoint.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.methods._replay import CHECK_PARAMS, ReplayClassifier, ReplayParameters, add, check_replay
from nocl.nets import Backbone
from nocl.nets.heads import GrowingLinear, GrowingPairHead
from nocl.plumbing.parameters import Count, NonNegative
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.pretrain import Objective, Recipe, Trained
from nocl.pretrain.augment import Augment
from nocl.stats.memory import gradients, highest, look, moved

_HIDDEN = 128  # of QNet
_HEAVY = Augment("heavy_jitter")


class DualViewObjective(Objective):
    """Base training with the dual-view loss, and with the head and QNet that the learner then copies."""

    weight = 4.0

    def __init__(self, network: Backbone, dim: int, n_classes: int, seed: int) -> None:
        super().__init__(network, dim, n_classes, seed)
        draw = generator(seed, "dual view heads")
        self.head, self.qnet = GrowingLinear(dim), GrowingPairHead(_HIDDEN, draw)
        self.head.grow(n_classes, draw)
        self.qnet.grow(n_classes, draw)

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.cat([x, _HEAVY(x, draw)]), torch.cat([y, y])

    def terms(self, z: Tensor, targets: Tensor) -> Tensor:
        raw, heavy = self.head(z).chunk(2)
        return dual_view(raw, heavy, self.qnet(raw, heavy), targets.chunk(2)[0], self.weight).total


class DVC(ReplayClassifier):
    """Dual view consistency with gradient-guided replay.

    Parameters
    ----------
    replay_batch
        Images replayed with each batch, 1 or more and at most ``candidates``; 10 in the paper.
    candidates
        Random images of the memory from which they are chosen, 1 or more; 50 in the paper.
    dl_weight
        w, the weight of the distance between the views' predictions, 0 or more; 4 in the paper.
    **common
        ``memory_size`` (images kept, 1 or more), ``lr`` (learning rate, 0 or more), ``freeze_backbone`` (train the
        heads alone): see :class:`~nocl.methods._replay.ReplayLearner`. ``backbone``, ``weights``, ``recipe``,
        ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    base_recipe = Recipe(objective="nocl.methods.dvc:DualViewObjective")
    presets: ClassVar[dict[str, dict[str, JSON]]] = {"ft": {"freeze_backbone": True}}
    check_params = CHECK_PARAMS

    def __init__(
        self,
        *,
        replay_batch: Count = 10,
        candidates: Count = 50,
        dl_weight: NonNegative = 4.0,
        **common: Unpack[ReplayParameters],
    ) -> None:
        super().__init__(**common)
        check_replay(replay_batch, candidates)
        self.replay_batch, self.candidates, self.dl_weight = replay_batch, candidates, dl_weight
        self.qnet = GrowingPairHead(_HIDDEN, self.draw)

    def grow(self, n: int) -> None:
        super().grow(n)
        self.qnet.grow(n, self.draw)

    def take_heads(self, trained: Trained) -> None:
        super().take_heads(trained)
        if isinstance(trained.objective, DualViewObjective):
            self.head.load_state_dict(trained.objective.head.state_dict())
            self.qnet.load_state_dict(trained.objective.qnet.state_dict())

    def observe(self, x: Tensor, y: Tensor) -> None:
        new, columns = self.scale(x), self.columns(y)
        self.set_training(True)
        parameters = self.learning_parameters()
        gradient = gradients(self.loss(new, columns), parameters)
        if len(self.memory):
            slots = self.retrieve(moved(parameters, gradient, self.lr))
            self.set_training(True)
            old = self.scale(self.memory.images[slots])
            gradient = add(gradient, gradients(self.loss(old, self.memory.columns[slots]), parameters))
        self.descend(gradient)
        self.memory.update(x, columns, self.draw)
        self.eval()

    def loss(self, raw: Tensor, columns: Tensor) -> Tensor:
        """The dual-view loss of images in [0, 1]; both views go through the network as one batch."""
        heavy = _HEAVY(raw, self.draw)
        logits: Tensor = self(self.network.normalise(torch.cat([raw, heavy])))[0]
        z, z_heavy = logits.chunk(2)
        return dual_view(z, z_heavy, self.qnet(z, z_heavy), columns, self.dl_weight).total

    def retrieve(self, ahead: Mapping[str, Tensor]) -> Tensor:
        """Slots of the candidates whose last-layer gradient grows most when the parameters become ``ahead``."""
        slots = self.memory.random(self.candidates, self.draw)
        self.eval()
        images, columns = self.recall(slots)
        (logits, z), (logits_ahead, z_ahead) = look(self, images, {}), look(self, images, ahead)
        growth = last_layer_gradient(logits_ahead, z_ahead, columns) - last_layer_gradient(logits, z, columns)
        return slots[highest(growth, self.replay_batch)]

    def forward(self, x: Tensor) -> Any:
        """Logits [B, K] and features [B, d] of prepared images."""
        z = self.encode(x)
        return self.head(z), z


class DualView(NamedTuple):
    """The three terms of DVC's loss."""

    cross_entropy: Tensor
    entropy: Tensor  # minus the mean entropy of the batch's average predictions, between -log K and 0
    distance: Tensor

    @property
    def total(self) -> Tensor:
        return self.cross_entropy + self.entropy + self.distance


def dual_view(raw: Tensor, heavy: Tensor, joint: Tensor, y: Tensor, weight: float) -> DualView:
    """DVC's loss of the logits [N, K] of two views and of both together.

    Cross-entropy of both views; the negative entropy of each average prediction (minimising it spreads predictions over
    classes); and ``weight`` times the mean absolute difference of each view from the joint prediction. The last two
    bound the mutual information of the views.

    >>> even = torch.zeros(4, 5)
    >>> dual_view(even, even, even, torch.tensor([0, 1, 2, 3]), weight=4.0)[1:]  # -log 5 and 0
    (tensor(-1.6094), tensor(0.))
    """
    cross_entropy = F.cross_entropy(torch.cat([raw, heavy]), torch.cat([y, y]))
    p_raw, p_heavy, p_joint = raw.softmax(1), heavy.softmax(1), joint.softmax(1)
    entropy = torch.stack([negative_entropy(p.mean(0)) for p in (p_raw, p_heavy, p_joint)]).mean()
    distance = torch.cat([p_joint - p_raw, p_joint - p_heavy]).abs().mean()
    return DualView(cross_entropy, entropy, weight * distance)


def negative_entropy(p: Tensor) -> Tensor:
    """Sum of p log p over a distribution [K]."""
    p = p.clamp_min(torch.finfo(p.dtype).eps)
    return (p * p.log()).sum()


def last_layer_gradient(logits: Tensor, z: Tensor, columns: Tensor) -> Tensor:
    """L1 norm of each image's cross-entropy gradient on the last linear layer's weight [n] (MGI).

    The gradient is the outer product of ``softmax - onehot`` and the feature, so its norm is the product of theirs.
    """
    error = logits.softmax(1) - F.one_hot(columns, logits.shape[1])
    return error.abs().sum(1) * z.abs().sum(1)
