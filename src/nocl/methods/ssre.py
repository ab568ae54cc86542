"""SSRE: self-sustaining representation expansion (Zhu et al., CVPR 2022).

In a session every inner 3x3 convolution gets a parallel 1x1 convolution (a branch) that starts at zero; only branches
and head are trained. When the session ends, the branches are added to the kernels (``nets/adapters.py``), so the
network never grows. z is the feature of an image, z_old its feature by the network of the last session's end; tau =
0.1; c are random old classes:

    w  = max over old classes of cos(z, mu_c), within 0 .. 1                similarity of the image to old classes
    L  = mean (1 - w) CE(head(z) / tau, y) + sum w |z - z_old|              learn if new, distil if similar
       + 10 CE(head(mu_c) / tau, c)                                         old classes: their means
    prediction: argmax_c head(theta(x))_c

The base session minimises CE(head(z) / tau, y). Features after a ReLU are never negative, so w is far from 0 for new
images too and removes most of the first term (``docs/methods/ssre.md`` has the measured share).

Differences from the public codes (zhukaii/SSRE, whose base training is not published; PyCIL, used by NO-CL's authors):

* One pass; see ``_distilling.py`` for the means of new classes.
* Base training uses the network without branches and the strong augmentation. PyCIL has random branches in the base
  session, and by an off-by-one error uses its strong augmentation in the first session after it.
* Branches have no bias, as in the authors' code. Convolution and branch are computed as one convolution with summed
  kernels, which is the same function. Batch normalisation is in evaluation mode during the stream: only then is adding
  the branches to the kernels exact.
* ``fold_batchnorm`` merges normalisation into the convolutions after the base session, as the authors do; the branches
  then come after it. PyCIL, and our default, keep it.
* w is limited to 0 .. 1; where features may be negative a cosine below 0 would reward moving away from z_old.
* ``kd_reduction="mean"`` averages the second term, whose sum depends on the batch size.
* The code has a threshold on w but does not use it; here there is none.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.methods._distilling import QUICK_RECIPE, DistillingLearner, DistillingParameters
from nocl.nets.adapters import Adapters, fold_batchnorm
from nocl.plumbing.parameters import NonNegative
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Recipe, Trained


class SSRE(DistillingLearner):
    """Convolution branches merged after each session; images similar to old classes are distilled, others learned.

    Parameters
    ----------
    weight_decay
        Weight decay of Adam, 0 or more; 5e-4 in the code.
    weight_kd
        Weight of the distillation term, 0 or more; 1 in the code.
    kd_reduction
        ``sum`` over the batch as in the code, or ``mean``.
    fold_batchnorm
        Merge batch normalisation into the convolutions after the base session, as the authors do.
    **common
        ``lr`` (of Adam, above 0), ``tau`` (temperature of every cross-entropy, above 0), ``weight_proto`` (weight of
        the old classes' means, 0 or more), ``augment`` (an augmentation by name), ``answer`` (``linear`` or ``mean``):
        see :class:`~nocl.methods._distilling.DistillingLearner`. ``backbone``, ``weights``, ``recipe``,
        ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
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
        weight_decay: NonNegative = 5e-4,
        weight_kd: NonNegative = 1.0,
        kd_reduction: Literal["sum", "mean"] = "sum",
        fold_batchnorm: bool = False,
        **common: Unpack[DistillingParameters],
    ) -> None:
        super().__init__(weight_decay=weight_decay, weight_kd=weight_kd, **common)
        self.kd_reduction, self.fold_batchnorm = kd_reduction, fold_batchnorm
        self.adapters = Adapters(self.network)
        self.adam.follow(self.learning_parameters())

    def learning_parameters(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.named_parameters() if name.startswith(("adapters.", "head."))}

    def set_training(self, training: bool) -> None:
        """Always evaluation mode: merging branches is exact only with fixed batch statistics."""
        self.eval()

    def encode(self, x: Tensor) -> Tensor:
        return self.adapters.encode(self.network, x)

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        if self.fold_batchnorm:
            fold_batchnorm(self.network)
        super().after_base(trained, base)

    def end_session(self) -> None:
        """Add the branches to the kernels, then copy the network to the previous one."""
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
        self.note(
            new_class_loss=learning,
            old_class_loss=reminding,
            distillation_loss=keeping,
            similarity_to_old=weight.mean(),
        )
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
    """The first two terms of L: mean of (1 - weight) cross-entropy; sum (or mean) of weight |z - before|, by row [N].

    >>> zeros, ones = torch.zeros(2, 2), torch.ones(2)
    >>> weighted_learning(zeros, torch.tensor([0, 1]), zeros, zeros + 1, ones)[0]  # weight 1: no cross-entropy
    tensor(0.)
    """
    learning = ((1 - weight) * F.cross_entropy(logits, y, reduction="none")).mean()
    distances = weight * torch.linalg.vector_norm(z - before, dim=1)
    return learning, distances.sum() if reduction == "sum" else distances.mean()
