"""ALICE: angular penalty, augmented classes and data, nearest class mean (Peng et al., ECCV 2022).

Only the base session trains the network; its loss makes compact, well separated classes. With a
projector g and one row w_j for each of the B base classes and B (B - 1) / 2 mixtures of two of them:

    views:  x1, x2 = heavy(x), heavy(x);  four times a random partner b for each image a of another class:
            lam x_a + (1 - lam) x_b, lam ~ Beta(20, 20) limited to 0.4 .. 0.6, an additional class; same for both views
    c_j  =  cos(g(theta1(x)), w_j)
    loss =  mean of -log softmax_y(s (c - m onehot_y)),  s = 30, m = 0.4                       (``cosface``)

Projector and rows are then dropped. The mean feature theta1(x) of each class, base or novel, is kept:

    mu_y <- mu_y + (theta1(x) - mu_y) / n_y;    prediction: argmax_c cos(theta1(x), mu_c)

Differences from the public code (CanPeng123/FSCIL_ALICE):

* The code is for five images of each class and selects five of base classes too. Here every image counts, as in the
  NO-CL paper, so base and novel means are equally good without a selection.
* The last epoch's network is used; the code keeps the epoch that is best on test data, measured on the projected
  features, while predictions use the features before the projector.
* There are rows for base classes and their mixtures; the code also has some for classes of later sessions.
* Both views and all mixtures go through the network as one batch (the code: one view after the other), and mixing is
  vectorised. Batch size is the stream's, 100, not 128. Pixels are not normalised and test images not zoomed.
* A margin or scale of 0 is accepted; the code replaces it by the default.
"""

from typing import Annotated, ClassVar, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl.learner import Common
from nocl.methods.ncm import NCM
from nocl.nets import Backbone
from nocl.plumbing.parameters import Positive, Range
from nocl.plumbing.seeding import scoped, seed_from
from nocl.plumbing.types import JSON
from nocl.pretrain import Objective, Recipe
from nocl.pretrain.augment import Augment
from nocl.pretrain.objectives import mix_classes

_HEAVY = Augment("heavy")


class AngularPenalty(Objective):
    """Two heavy views and mixed classes under the angular penalty. Options of the recipe: ``scale``, ``margin``."""

    def __init__(
        self, network: Backbone, dim: int, n_classes: int, seed: int, *, width: int = 2048, mixes: int = 4,
        scale: float = 30.0, margin: float = 0.4,
    ) -> None:  # fmt: skip
        super().__init__(network, dim, n_classes, seed)
        self.n_classes, self.mixes, self.scale, self.margin = n_classes, mixes, scale, margin
        with scoped(seed_from(seed, "projector")):
            self.projector = nn.Sequential(
                nn.Linear(dim, width),
                nn.BatchNorm1d(width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.BatchNorm1d(width, affine=False),
            )
            rows = torch.empty(n_classes + n_classes * (n_classes - 1) // 2, width)
            self.rows = nn.Parameter(nn.init.xavier_uniform_(rows))

    @classmethod
    def build(cls, network: Backbone, dim: int, n_classes: int, seed: int, recipe: Recipe) -> Self:
        if not recipe.projection:
            raise ValueError("ALICE's projector needs a width: set recipe.projection, 2048 in the paper")
        options = recipe.options
        return cls(network, dim, n_classes, seed, width=recipe.projection, mixes=recipe.mixes, **options)  # type: ignore[arg-type]

    def views(self, x: Tensor, y: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        views = [_HEAVY(x, draw), _HEAVY(x, draw)]
        mixed, labels = mix_classes(views, y, self.n_classes, draw, times=self.mixes)
        return torch.cat([*views, *mixed]), torch.cat([y, y, *labels])

    def terms(self, z: Tensor, targets: Tensor) -> Tensor:
        cosine = F.normalize(self.projector(z), dim=1) @ F.normalize(self.rows, dim=1).T  # [N, rows]
        return cosface(cosine, targets, self.scale, self.margin)


class ALICE(NCM):
    """Base session with an angular penalty on augmented classes, then the nearest class mean.

    Parameters
    ----------
    cosine_scale
        s, the factor of the cosines, above 0; 30 in the paper.
    margin
        m, subtracted from the cosine of the label, from 0 to below 2; 0.4 in the paper.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    base_recipe = Recipe(
        objective="nocl.methods.alice:AngularPenalty",
        lr=0.01,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="steps:60,70",
        projection=2048,
        mixes=4,
    )
    check_params: ClassVar[dict[str, JSON]] = {
        "recipe": {"epochs": 3, "lr": 0.05, "schedule": "onecycle", "projection": 64, "mixes": 1, "compile": False}
    }

    def __init__(
        self,
        *,
        cosine_scale: Positive = 30.0,
        margin: Annotated[float, Range(0, 2, below=True)] = 0.4,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(space="vanilla", metric="cosine", **common)
        self.cosine_scale, self.margin = cosine_scale, margin
        self.full_recipe = self.full_recipe.with_changes({"options": {"scale": cosine_scale, "margin": margin}})


def cosface(cosine: Tensor, y: Tensor, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """ALICE's angular penalty: mean cross-entropy of ``scale`` (cosine - ``margin`` at the label), cosines [N, K].

    >>> cosface(torch.zeros(1, 3), torch.tensor([0]))  # log(1 + 2 e^12)
    tensor(12.6932)
    """
    return F.cross_entropy(scale * (cosine - margin * F.one_hot(y, cosine.shape[1])), y)
