"""SSRE: self-sustaining representation expansion (Zhu et al., CVPR 2022).

For a session every inner 3x3 convolution gets a 1x1 branch beside it, zero at first; only branches and head learn.
When the session ends the branches are folded into the kernels (``nets/adapters.py``), so the network never grows. With
z = theta(x), z_old the same by the network as the last session left it, tau = 0.1 and old classes c picked at random:

    w  = max over old classes of cos(z, mu_c), within 0 .. 1                how much the image is like what is known
    L  = mean (1 - w) CE(head(z) / tau, y) + sum w |z - z_old|              learn what is new, keep what is not
       + 10 CE(head(mu_c) / tau, c)                                         old classes, as their means
    answer: argmax_c head(theta(x))_c

The base session minimises CE(head(z) / tau, y). Features behind a ReLU are never negative, so w is far from 0 for new
images too and takes most of the first term away (``docs/methods/ssre.md`` has the measured share).

Differences from the public codes (zhukaii/SSRE, whose base training is not published; PyCIL, used by NO-CL's authors):

* One pass; see ``distilling.py`` for the means of new classes.
* Base training is on the plain network under the strong augmentation. PyCIL has the branches on, random, in the base
  session, and gives its strong augmentation to the first session after it, by an off-by-one.
* Branches have no bias, as in the authors' code. The expanded network is run with summed kernels, which is the same
  function; batch normalisation is in evaluation mode online, where the fold is exact.
* ``fold_batchnorm`` folds normalisation into the convolutions after the base session, as the authors do; the branches
  then act behind it. PyCIL, and our default, keep it.
* w is kept within 0 .. 1; where features may be negative a cosine below 0 would reward moving away from z_old.
* ``kd_reduction="mean"`` averages the second term, whose sum depends on the batch size.
* The code's threshold on w is not used by it either.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import Common
from nocl.methods._distilling import QUICK_RECIPE, DistillingLearner
from nocl.nets.adapters import Adapters, fold_batchnorm
from nocl.plumbing.parameters import NonNegative, Positive
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Recipe, Trained


class SSRE(DistillingLearner):
    """Branches beside convolutions that are folded in after each session, and learning weighed against keeping.

    Parameters
    ----------
    lr
        Learning rate of Adam, above 0; 0.001 in the code.
    weight_decay
        Weight decay of Adam, 0 or more; 5e-4 in the code.
    tau
        Temperature of every cross-entropy, above 0; 0.1 in the code.
    weight_kd
        Weight of the term that keeps features, 0 or more; 1 in the code.
    weight_proto
        Weight of the old classes' means, 0 or more; 10 in the code.
    kd_reduction
        ``sum`` over the batch as in the code, or ``mean``.
    fold_batchnorm
        Fold batch normalisation into the convolutions after the base session, as the authors do.
    augment
        Augmentation of new images, by name: see :class:`nocl.pretrain.augment.Augment`.
    answer
        ``linear``: the head answers; ``mean``: the nearest class mean.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    base_recipe = Recipe(
        objective="nocl.methods._distilling:SharpCrossEntropy",
        optimizer="adam",
        epochs=100,
        lr=0.001,
        weight_decay=5e-4,
        schedule="steps:45,90",
        augment="autoaugment",
    )
    check_params: ClassVar[dict[str, JSON]] = {"recipe": {**QUICK_RECIPE, "augment": "none"}}

    def __init__(
        self,
        *,
        lr: Positive = 0.001,
        weight_decay: NonNegative = 5e-4,
        tau: Positive = 0.1,
        weight_kd: NonNegative = 1.0,
        weight_proto: NonNegative = 10.0,
        kd_reduction: Literal["sum", "mean"] = "sum",
        fold_batchnorm: bool = False,
        augment: str = "bright_crop_flip",
        answer: Literal["linear", "mean"] = "linear",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            lr=lr,
            weight_decay=weight_decay,
            tau=tau,
            weight_kd=weight_kd,
            weight_proto=weight_proto,
            augment=augment,
            answer=answer,
            **common,
        )
        self.kd_reduction, self.fold_batchnorm = kd_reduction, fold_batchnorm
        self.adapters = Adapters(self.network)
        self.adam.follow(self.learning_parameters())

    def learning_parameters(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.named_parameters() if name.startswith(("adapters.", "head."))}

    def set_training(self, training: bool) -> None:
        """Nothing behaves otherwise in training: the fold is exact only with fixed batch statistics."""
        self.eval()

    def encode(self, x: Tensor) -> Tensor:
        return self.adapters.encode(self.network, x)

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if self.fold_batchnorm:
            fold_batchnorm(self.network)
        super().after_base(trained, base)

    def end_session(self) -> None:
        """Fold the branches in; the network as it is then becomes the previous one."""
        self.adapters.fold(self.network)
        super().end_session()

    def loss(self, x: Tensor, columns: Tensor) -> Tensor:
        images = self.network.normalise(x)
        z = self.encode(images)
        logits = self.head(z) / self.tau
        if not self.known_:
            return F.cross_entropy(logits, columns)
        with torch.no_grad():
            before = self.previous(images)
        picked, old = self.picks(len(x)), self.stats.mean[: int(self.known_)].to(z)
        weight = likeness(z.detach(), old)
        learning, keeping = weighted_learning(logits, columns, z, before, weight, self.kd_reduction)
        keeping, reminding = self.weight_kd * keeping, self.weight_proto * self.reminder(old[picked], picked)
        self.note(learning=learning, reminding=reminding, keeping=keeping, likeness=weight.mean())
        return learning + reminding + keeping


def likeness(z: Tensor, means: Tensor) -> Tensor:
    """w: each feature's largest cosine to a mean of an old class [B], within 0 .. 1.

    >>> likeness(torch.tensor([[2.0, 0.0], [-1.0, -1.0]]), torch.eye(2))
    tensor([1., 0.])
    """
    return (F.normalize(z, dim=1) @ F.normalize(means, dim=1).T).amax(1).clamp(0, 1)


def weighted_learning(
    logits: Tensor, y: Tensor, z: Tensor, before: Tensor, weight: Tensor, reduction: Literal["sum", "mean"] = "sum"
) -> tuple[Tensor, Tensor]:
    """SSRE's two terms: mean of (1 - weight) cross-entropy, and sum (or mean) of weight |z - before|, all by row [N].

    >>> zeros, ones = torch.zeros(2, 2), torch.ones(2)
    >>> weighted_learning(zeros, torch.tensor([0, 1]), zeros, zeros + 1, ones)[0]  # nothing new, nothing to learn
    tensor(0.)
    """
    learning = ((1 - weight) * F.cross_entropy(logits, y, reduction="none")).mean()
    distances = weight * torch.linalg.vector_norm(z - before, dim=1)
    return learning, distances.sum() if reduction == "sum" else distances.mean()
