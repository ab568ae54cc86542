"""ACIL: ridge regression on a random expansion, solved recursively (Zhuang et al., NeurIPS 2022), and G-ACIL.

A fixed random layer E, uniform in +-1/sqrt(d), widens the feature: h = relu(z E). Kept are W and the inverse
R = (sum h h^T + gamma I)^-1, which for a batch H with labels Y become

    R <- R - R H^T (I + H R H^T)^-1 H R
    W <- W + R H^T (Y - H W)             with the new R

so that after any stream W equals the ridge solution on all of it, and nothing is forgotten. The base session
is one such pass ("re-alignment"). Columns are added when a class first comes and a class may come again at
any time, which is the generalised setting of G-ACIL (Zhuang et al., NeurIPS 2024). The answer is that of
``ranpac`` with the same layer and ridge; this form costs more for each image and nothing before a prediction.

F-OAL (Zhuang et al., NeurIPS 2024) is the same recursion on features of several stages through a sigmoid:
``stages=[1, 2, 3, 4], activation="sigmoid", expansion=1000, gamma=1``.

Differences from the authors' code, and why. Each sample is counted once: the G-ACIL code passes over each
batch three times, which weights samples three-fold in a setting that allows one pass. M is 2048 where the
paper has 8192: R grows with its square. The network is the shared base network, its last epoch; the code
keeps the epoch that tests best. F-OAL here drops no last batch, and its stages are set side by side because
they differ in width, where the authors average tokens of equal width. All in float64; R is made symmetric
every 100 batches."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from nocl.learner import FrozenLearner
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.stats.ridge import Activation, Expansion, RecursiveRidge


class ACIL(FrozenLearner):
    """Analytic class-incremental learning."""

    depends_on_batching: ClassVar[bool] = False
    check_params: ClassVar[dict[str, JSON]] = {"expansion": 64}

    def __init__(
        self,
        *,
        expansion: int = 2048,
        gamma: float = 0.1,
        activation: Activation = "relu",
        stages: Sequence[int] | None = None,
        backbone: str = "reduced_resnet18",
        weights: str | None = None,
        recipe: Mapping[str, JSON] | None = None,
        image_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(
            stages=stages, backbone=backbone, weights=weights, recipe=recipe, image_size=image_size, seed=seed
        )
        self.expansion, self.gamma, self.activation = expansion, gamma, activation
        self.layer = Expansion(
            self.feature_dim, expansion, init="uniform", draw=generator(seed, "acil"), activation=activation
        )
        self.solution = RecursiveRidge(self.layer.width, gamma)

    def grow(self, n: int) -> None:
        self.solution.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        columns = self.columns(y)
        self.solution.update(self.layer(z.double()), columns)

    def score(self, z: Tensor) -> Tensor:
        scores: Tensor = self.layer(z) @ self.solution.weight.to(z)
        return scores.masked_fill(self.solution.count == 0, float("-inf"))

    def network_state_names(self) -> set[str]:
        return super().network_state_names() | {"layer.matrix"}
