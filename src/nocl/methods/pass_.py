"""PASS: prototype augmentation and self-supervision (Zhu et al., CVPR 2021).

The head has four rows a class: an image of class y turned k quarters has label 4y + k. With z = theta(turned x), z_old
the same by the network as the last session left it, tau = 0.1 and old classes c picked at random, a step minimises

    L = CE(head(z) / tau, 4y + k)                                         new classes, in four turns
      + 10 CE(head(mu_c + r eps) / tau, 4c),  eps ~ Normal(0, 1)          old classes, as noise around their means
      + 10 |z - z_old|                                                    and features that stay where they were

    r^2 = mean over base classes of trace(covariance) / d;    answer: argmax_c head(theta(x))[4c]

The base session minimises the first term alone. PASS was made for a hundred epochs a session. In one pass of batches of
ten the NO-CL paper finds that it keeps the base classes and learns almost nothing new. At the codes' rate of 0.001 ours
does the opposite; at a tenth of it and with the base session's batch statistics, preset ``slow``, it does what the
paper reports (``docs/methods/pass.md`` has the numbers and the reason).

Differences from the public codes (Impression2805/CVPR21_PASS; PyCIL):

* One pass; see ``distilling.py`` for the means of new classes. Means and r of the base session are taken from all
  images, not augmented; the code augments them and drops the last short batch.
* |z - z_old| is the norm of the whole batch's difference, so it weighs less in smaller batches; ``kd="mean"`` averages
  the rows' norms instead.
* ``radius="all"`` recomputes r over all classes when a session ends, as PyCIL does.
* ``proto_batch`` pseudo-features a step, by default as many as images. Noise has the feature's length, not 512.
* One pass gives both logits and features; z_old builds no graph. A class with fewer than two images has no part in r.
* The rate falls at epochs 45 and 90 of the base session; the code's scheduler is one epoch early.
* ``answer="mean"`` is PyCIL's second figure, the nearest mean; state is the same, so it can be changed when loaded.
* ``freeze_batchnorm`` keeps the base session's batch statistics; the codes let them follow the new classes.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import Common
from nocl.methods._distilling import QUICK_RECIPE, DistillingLearner, rotation_labels
from nocl.plumbing.parameters import Count, NonNegative, Positive
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Recipe, Trained
from nocl.pretrain.augment import rotated
from nocl.stats.class_stats import ClassStats


class PASS(DistillingLearner):
    """Rotation labels, class means with noise for old classes, and distillation from the previous network.

    Parameters
    ----------
    lr
        Learning rate of Adam, above 0; 0.001 in the code, 1e-4 in preset ``slow``.
    weight_decay
        Weight decay of Adam, 0 or more; 2e-4 in the code.
    tau
        Temperature of every cross-entropy, above 0; 0.1 in the code.
    weight_kd
        Weight of the term that keeps features, 0 or more; 10 in the paper.
    weight_proto
        Weight of the old classes' pseudo-features, 0 or more; 10 in the paper.
    kd
        Distance to the previous features: ``frobenius``, the norm of the whole batch's difference, or ``mean`` of
        the rows' norms.
    radius
        Classes from which r is computed: ``base``, or ``all`` as in PyCIL.
    proto_batch
        Pseudo-features of each step, 1 or more; None: as many as images.
    freeze_batchnorm
        Keep the base session's batch statistics online.
    augment
        Augmentation of new images, by name: see :class:`nocl.pretrain.augment.Augment`.
    answer
        ``linear``: the head answers; ``mean``: the nearest class mean.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    rows = 4
    base_recipe = Recipe(
        objective="nocl.methods._distilling:RotatedCrossEntropy",
        optimizer="adam",
        epochs=101,
        lr=0.001,
        weight_decay=2e-4,
        schedule="steps:45,90",
        augment="bright_crop_flip",
    )
    presets: ClassVar[dict[str, dict[str, JSON]]] = {"slow": {"lr": 1e-4, "freeze_batchnorm": True}}
    check_params: ClassVar[dict[str, JSON]] = {"recipe": QUICK_RECIPE}
    radius_: Tensor  # float64 []

    def __init__(
        self,
        *,
        lr: Positive = 0.001,
        weight_decay: NonNegative = 2e-4,
        tau: Positive = 0.1,
        weight_kd: NonNegative = 10.0,
        weight_proto: NonNegative = 10.0,
        kd: Literal["frobenius", "mean"] = "frobenius",
        radius: Literal["base", "all"] = "base",
        proto_batch: Count | None = None,
        freeze_batchnorm: bool = False,
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
        self.kd, self.radius, self.proto_batch, self.freeze_batchnorm = kd, radius, proto_batch, freeze_batchnorm
        self.keeps_spread = radius == "all"
        self.register_buffer("radius_", torch.zeros((), dtype=torch.float64))
        self.adam.follow(self.learning_parameters())

    def learning_parameters(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.named_parameters() if not name.startswith("previous.")}

    def set_training(self, training: bool) -> None:
        super().set_training(training)
        if self.freeze_batchnorm:
            self.network.eval()

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        super().after_base(trained, base)
        self.radius_.fill_(radius_of(self.stats))

    def end_session(self) -> None:
        super().end_session()
        if self.radius == "all":
            self.radius_.fill_(radius_of(self.stats))

    def loss(self, x: Tensor, columns: Tensor) -> Tensor:
        images, labels = self.network.normalise(rotated(x)), rotation_labels(columns)
        z = self.encode(images)
        if not self.known_:
            return F.cross_entropy(self.head(z) / self.tau, labels)
        picked = self.picks(self.proto_batch or len(x))
        noise = torch.randn(len(picked), self.feature_dim, generator=self.draw).to(z)
        with torch.no_grad():
            before = self.previous(images)
        return self.terms(z, before, labels, picked, noise)

    def terms(self, z: Tensor, before: Tensor, labels: Tensor, picked: Tensor, noise: Tensor) -> Tensor:
        """The whole loss of features, the previous network's features, and old classes with their noise."""
        learning = F.cross_entropy(self.head(z) / self.tau, labels)
        pseudo = self.stats.mean[picked].to(z) + self.radius_.to(z) * noise
        reminding = self.weight_proto * self.reminder(pseudo, picked)
        keeping = self.weight_kd * distance(z, before, self.kd)
        self.note(learning=learning, reminding=reminding, keeping=keeping)
        return learning + reminding + keeping


def radius_of(stats: ClassStats) -> float:
    """r: the root of the average variance over values and over classes with two images or more; 0 without any."""
    enough = stats.count > 1
    return float(stats.variance(unbiased=True)[enough].mean().sqrt()) if bool(enough.any()) else 0.0


def distance(z: Tensor, before: Tensor, kind: Literal["frobenius", "mean"] = "frobenius") -> Tensor:
    """How far features [N, d] are from those of an earlier model: the norm of the whole difference, or rows' mean norm.

    >>> distance(torch.ones(4, 4), torch.zeros(4, 4))
    tensor(4.)
    """
    norms: Tensor = torch.linalg.vector_norm(z - before, dim=None if kind == "frobenius" else 1)
    return norms.mean()
