"""PASS: prototype augmentation and self-supervision (Zhu et al., CVPR 2021).

The head has four rows for each class: an image of class y rotated by k quarter turns has label 4y + k. z is the feature
of a rotated image, z_old its feature by the network of the last session's end; tau = 0.1; c are random old classes. A
step minimises

    L = CE(head(z) / tau, 4y + k)                                         new classes, in four rotations
      + 10 CE(head(mu_c + r eps) / tau, 4c),  eps ~ Normal(0, 1)          old classes: their means plus noise
      + 10 |z - z_old|                                                    distillation: features change little

    r^2 = mean over base classes of trace(covariance) / d;    prediction: argmax_c head(theta(x))[4c]

The base session minimises the first term alone. PASS was designed for a hundred epochs in each session. With one pass
and batches of ten, the NO-CL paper reports that PASS keeps the base classes and learns almost nothing new. With the
codes' learning rate of 0.001 ours does the opposite; with a tenth of it and the base session's batch statistics (preset
``slow``) it does what the paper reports (``docs/methods/pass.md`` has the numbers and the reason).

Differences from the public codes (Impression2805/CVPR21_PASS; PyCIL):

* One pass; see ``_distilling.py`` for the means of new classes. Means and r of the base session are taken from all
  images, not augmented; the code augments them and drops the last short batch.
* |z - z_old| is the norm of the whole batch's difference, so it weighs less in smaller batches; ``kd="mean"`` averages
  the rows' norms instead.
* ``radius="all"`` recomputes r over all classes when a session ends, as PyCIL does.
* ``proto_batch`` pseudo-features a step, by default as many as images. Noise has the feature's length, not 512.
* Logits and features come from one forward pass; z_old has no gradient. A class with fewer than two images is left out
  of r.
* The learning rate falls at epochs 45 and 90 of the base session; the code's scheduler is one epoch early.
* ``answer="mean"`` predicts the nearest mean, PyCIL's second result. The state is the same, so a saved learner can be
  loaded with the other value.
* ``freeze_batchnorm`` keeps the base session's batch statistics; the codes let them follow the new classes.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.methods._distilling import QUICK_RECIPE, DistillingLearner, DistillingParameters, rotation_labels
from nocl.plumbing.parameters import Count, NonNegative
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Recipe, Trained
from nocl.pretrain.augment import rotated
from nocl.stats.class_stats import ClassStats


class PASS(DistillingLearner):
    """Rotation labels, class means with noise for old classes, and distillation from the previous network.

    Parameters
    ----------
    weight_decay
        Weight decay of Adam, 0 or more; 2e-4 in the code.
    weight_kd
        Weight of the distillation term, 0 or more; 10 in the paper.
    kd
        Distance to the previous features: ``frobenius``, the norm of the whole batch's difference, or ``mean`` of
        the rows' norms.
    radius
        Classes from which r is computed: ``base``, or ``all`` as in PyCIL.
    proto_batch
        Pseudo-features of each step, 1 or more; None: as many as images.
    freeze_batchnorm
        Keep the base session's batch statistics during the stream.
    **common
        ``lr`` (of Adam, above 0), ``tau`` (temperature of every cross-entropy, above 0), ``weight_proto`` (weight of
        the old classes' means, 0 or more), ``augment`` (an augmentation by name), ``answer`` (``linear`` or ``mean``):
        see :class:`~nocl.methods._distilling.DistillingLearner`. ``backbone``, ``weights``, ``recipe``,
        ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
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
        weight_decay: NonNegative = 2e-4,
        weight_kd: NonNegative = 10.0,
        kd: Literal["frobenius", "mean"] = "frobenius",
        radius: Literal["base", "all"] = "base",
        proto_batch: Count | None = None,
        freeze_batchnorm: bool = False,
        **common: Unpack[DistillingParameters],
    ) -> None:
        super().__init__(weight_decay=weight_decay, weight_kd=weight_kd, **common)
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
        """The loss L, from features, the previous network's features, and random old classes with noise."""
        learning = F.cross_entropy(self.head(z) / self.tau, labels)
        pseudo = self.stats.mean[picked].to(z) + self.radius_.to(z) * noise
        reminding = self.weight_proto * self.reminder(pseudo, picked)
        keeping = self.weight_kd * distance(z, before, self.kd)
        self.note(new_class_loss=learning, old_class_loss=reminding, distillation_loss=keeping)
        return learning + reminding + keeping


def radius_of(stats: ClassStats) -> float:
    """r: the root of the average variance over values and over classes with two images or more; 0 without any."""
    enough = stats.count > 1
    return float(stats.variance(unbiased=True)[enough].mean().sqrt()) if bool(enough.any()) else 0.0


def distance(z: Tensor, before: Tensor, kind: Literal["frobenius", "mean"] = "frobenius") -> Tensor:
    """Distance between features [N, d] of two models: the norm of the whole difference, or the mean norm of its rows.

    >>> distance(torch.ones(4, 4), torch.zeros(4, 4))
    tensor(4.)
    """
    norms: Tensor = torch.linalg.vector_norm(z - before, dim=None if kind == "frobenius" else 1)
    return norms.mean()
