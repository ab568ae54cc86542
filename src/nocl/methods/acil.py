"""ACIL: ridge regression on a random expansion, solved recursively (Zhuang et al., NeurIPS 2022), and G-ACIL.

A fixed random layer E, uniform in +-1/sqrt(d), makes the feature longer: h = relu(z E). The state is W and the inverse
R = (sum h h^T + gamma I)^-1. A batch H with labels Y updates both:

    R <- R - R H^T (I + H R H^T)^-1 H R
    W <- W + R H^T (Y - H W)             with the new R

so that after any stream W equals the ridge solution on all of it, and nothing is forgotten. The base session
is one such pass ("re-alignment"). A column is added when a class first appears, and a class may appear again at
any time, which is the generalised setting of G-ACIL (Zhuang et al., NeurIPS 2024). Predictions equal those of
``ranpac`` with the same layer and ridge; here learning an image costs more, and a prediction needs no solve.

F-OAL (Zhuang et al., NeurIPS 2024) is the same recursion on features of several stages through a sigmoid: preset
``foal``. Preset ``gacl`` has the settings of the G-ACIL code, which are for a vision transformer's features.

Differences from the authors' code, and why. Each sample is counted once: the G-ACIL code passes over each
batch three times, which weights samples three-fold in a setting that allows one pass. M is 2048 where the
paper has 8192: R grows with its square. The network is the shared base network, its last epoch; the code
keeps the epoch that tests best. F-OAL here drops no last batch, and its stages are concatenated because
they differ in width, where the authors average tokens of equal width. All in float64; R is made symmetric
every 100 batches."""

from typing import ClassVar, Unpack

from torch import Tensor

from nocl.learner import FrozenCommon, FrozenLearner
from nocl.plumbing.parameters import Fraction, Natural, Positive
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.stats.ridge import Activation, Expansion, RecursiveRidge, balanced

PRESETS: dict[str, dict[str, JSON]] = {
    "foal": {"stages": [1, 2, 3, 4], "activation": "sigmoid", "expansion": 1000, "gamma": 1.0, "balance": 0.0},
    "gacl": {"expansion": 5000, "gamma": 100.0, "balance": 0.0},
}


class ACIL(FrozenLearner):
    """Analytic class-incremental learning.

    Parameters
    ----------
    expansion
        Width of the random layer, 0 or more (0: no layer); 8,192 in the paper.
    gamma
        Ridge, above 0; 0.1 in the paper.
    activation
        Of the random layer: ``relu`` (ACIL) or ``sigmoid`` (F-OAL).
    balance
        How far scores are corrected for unequal numbers of images, from 0 to 1 (0 in the papers); see
        :func:`~nocl.stats.ridge.balanced`. The default was chosen on base classes (benchmarks/tune_balance.py).
    **common
        ``stages``, ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see
        :class:`~nocl.learner.FrozenLearner`.
    """

    depends_on_batching: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, JSON]]] = PRESETS
    check_params: ClassVar[dict[str, JSON]] = {"expansion": 64}
    search_space = ("gamma=0.001:100:log",)

    def __init__(
        self,
        *,
        expansion: Natural = 2048,
        gamma: Positive = 0.1,
        activation: Activation = "relu",
        balance: Fraction = 0.75,
        **common: Unpack[FrozenCommon],
    ) -> None:
        super().__init__(**common)
        self.expansion, self.gamma, self.activation, self.balance = expansion, gamma, activation, balance
        self.layer = Expansion(
            self.feature_dim, expansion, init="uniform", draw=generator(self.seed, "acil"), activation=activation
        )
        self.solution = RecursiveRidge(self.layer.width, gamma)

    def grow(self, n: int) -> None:
        self.solution.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        columns = self.columns(y)
        self.solution.update(self.layer(z.double()), columns)

    def score(self, z: Tensor) -> Tensor:
        scores = balanced(self.layer(z) @ self.solution.weight.to(z), self.solution.count, self.balance)
        return scores.masked_fill(self.solution.count == 0, float("-inf"))

    def network_state_names(self) -> set[str]:
        return super().network_state_names() | {"layer.matrix"}
