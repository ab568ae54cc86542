"""DSR: dual-prototype self-augment and refinement (Huo et al., AAAI 2024).

The extractor theta1 is frozen after the base session. Two prototypes are kept of each class c: the mean and spread of
its features, and the mean of their projection.

    f = g(theta1(x)),  g(u) = (max(u, 0) + 1e-6) ** power                  Tukey transform
    m_c, s_c = mean, std of f                                              vanilla prototype (with its spread)
    h_c = mean of theta2(f)                                                high-dimensional prototype

At the end of a session T iterations alternate two levels; B are the base classes, N all novel ones so far:

    lower:  J = mean_{i in B, j in N} phi(u_i . u_j) + mean_{i < j in N} phi(u_i . u_j),  u = tanh(h) / |tanh(h)|
            h_N <- (1 - rho) h_N + rho h_N',  h_N' = h_N after a few steps on J       push novel prototypes apart
    upper:  v ~ Normal(m_c, s_c^2), K for each class;  A = -mean cos(theta2(v), h_c)
            theta2 <- theta2 - lr dA/dtheta2                                align the projection with them
    answer: argmax_c cos(theta2(f), h_c)

Where this differs from the published code (huofushuo/NO-CL), and why:

* State is kept by class column in the learner, never in a shared file. Base rows are never written, so base prototypes
  stay the same bits. Every sample counts. The network runs once for each image, in evaluation mode throughout.
* Sample counts are explicit for base and novel classes. Standard
  deviations have a floor, because a unit that is always 0 has none. The 0.05 that
  the code adds to the stds of base classes is ``base_std_extra``, 0 unless asked for (preset ``official``).
* One novel class has no novel-novel pair: the term is left out instead of 0 / 0.
* The code recomputes prototypes through the aligned projection but never stores them, by an oversight that its
  published numbers probably share. Here they are not recomputed.
* The optimiser of a session holds theta2 alone, and is new for each session.
* phi = exp(4x) - 1 is the code's; it is least for opposite prototypes, not orthogonal ones. ``phi="doubleexp"`` is the
  penalty of C-FSCIL, from which it was taken.
* The base session trains both losses with heads 160-128 and tau 0.1, as the appendix says; the code trains L_hp alone
  with a head 2048-1024 and tau 0.07 (preset ``official``).

What goes beyond the paper is in :mod:`nocl.methods.dsr_calibrated`. A class that comes back later goes on averaging
into its prototypes, refined or not. Legend: K classes, d features, D projected values, N rows.
"""

from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Annotated, ClassVar, Literal, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.learner import Common, FrozenLearner
from nocl.nets.projection import Projection
from nocl.plumbing.parameters import Count, Fraction, Natural, NonNegative, Range
from nocl.plumbing.seeding import seed_from
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Objective, Recipe, Strategy, Trained, heads_on_features
from nocl.stats.class_stats import ClassStats, tukey

Phi = Literal["exp", "doubleexp"]
INNER_MOMENTUM = 0.9  # Nesterov's, of the lower level, as in the code
STD_FLOOR = 1e-4  # smallest standard deviation of a drawn feature
NEEDS_PROJECTION = "DSR needs an objective that trains its projection (ce or sc, +ssl, +da), not {!r}"


class DSR(FrozenLearner):
    """Two prototypes for each class: refine the high-dimensional ones, align the projection with sampled features.

    Parameters
    ----------
    power
        Power of the Tukey transform, from 0 to 2 (0: the logarithm); 0.5 in the paper.
    dim
        D, the length of the projection, 1 or more; 2,048 in the paper.
    iterations
        T, alternations of the two levels at the end of a session, 0 or more; 20 in the paper.
    samples
        K, features drawn of each class in each iteration, 1 or more; 20 in the paper.
    base_samples
        K of base classes, 0 or more; None: ``samples``.
    novel_samples
        K of novel classes, 0 or more; None: ``samples``.
    refine
        Switches the lower level.
    inner_steps
        Steps of the lower level, 0 or more; 5 in the code.
    inner_lr
        Learning rate of the lower level, 0 or more; 0.01 in the code.
    rho
        Fraction by which refined prototypes replace the old ones, from 0 to 1; 0.01 in the code.
    phi
        The penalty: ``exp`` (the code's) or ``doubleexp`` (C-FSCIL's).
    align
        Switches the upper level.
    outer_lr
        Learning rate of the upper level, 0 or more; 0.01 in the code.
    base_std_extra
        Added to the standard deviations of base classes, 0 or more; 0.05 in the code.
    refine_every
        Refine after so many images, 0 or more, for streams without sessions (0: when a session ends).
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    uses_boundaries = True  # refines when a session ends, unless refine_every is set
    needs_base = "its projection is trained on the base classes"
    base_recipe = Recipe(objective="sc", power=0.5, projection=2048, head_epochs=10)
    presets: ClassVar[dict[str, dict[str, JSON]]] = {
        "official": {"base_std_extra": 0.05, "recipe": {"tau": 0.07, "spaces": "high", "head": [2048, 1024]}},
        "paper": {"rho": 1.0, "phi": "doubleexp", "inner_lr": 0.1},  # of 0.1, 1, 10 the best on base classes alone
        "fast": {"samples": 1, "iterations": 2, "outer_lr": 0.1},  # benchmarks/dsr_fast.py, on base classes alone
    }
    retired: ClassVar[Mapping[str, JSON | EllipsisType]] = {
        "phi_scale": 4.0, "deviation": 0.0, "clip_negative": False, "std_floor": 1e-4, "inner_momentum": 0.9,
        "proto_update": "none", "proto_rate": 0.1, "proto_samples": 1000,
        "stages": None, "covariance": "diagonal", "prior": 3.0, "ridge": 0.001,
        "upper": "align", "upper_tau": 0.1, "outer_momentum": 0.0, "outer_clip": 0.0,
    }  # fmt: skip
    successor = "dsr_calibrated"
    check_params: ClassVar[dict[str, JSON]] = {"dim": 32, "iterations": 3, "samples": 5}

    pending_: Tensor  # int64 [], images observed since the last refinement
    stands_in: ClassVar[dict[str, str]] = {"base_samples": "samples", "novel_samples": "samples"}
    search_space = (
        "power=0.2:1",
        "rho=0.001:1:log",
        "outer_lr=0.001:0.1:log",
        "iterations=5:50:int",
    )

    def __init__(
        self,
        *,
        power: Annotated[float, Range(0, 2)] = 0.5,
        dim: Count = 2048,
        iterations: Natural = 20,
        samples: Count = 20,
        base_samples: Natural | None = None,
        novel_samples: Natural | None = None,
        refine: bool = True,
        inner_steps: Natural = 5,
        inner_lr: NonNegative = 0.01,
        rho: Fraction = 0.01,
        phi: Phi = "exp",
        align: bool = True,
        outer_lr: NonNegative = 0.01,
        base_std_extra: NonNegative = 0.0,
        refine_every: Natural = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.power, self.dim, self.iterations, self.refine_every = power, dim, iterations, refine_every
        self.samples, self.base_samples, self.novel_samples = samples, base_samples, novel_samples
        self.refine, self.inner_steps, self.inner_lr, self.rho, self.phi = refine, inner_steps, inner_lr, rho, phi
        self.align, self.outer_lr, self.base_std_extra = align, outer_lr, base_std_extra
        self.uses_boundaries = not refine_every  # type: ignore[misc]
        self.full_recipe = self.full_recipe.with_changes({"power": power, "projection": dim})
        self.projection = Projection(self.feature_dim, dim, seed=seed_from(self.seed, "projection")).eval()
        self.vanilla = ClassStats(self.feature_dim, "diagonal")
        self.high = ClassStats(dim)
        self.register_buffer("pending_", torch.zeros((), dtype=torch.int64))
        self._in_base = False

    # --- the base session -------------------------------------------------------------------------------------

    def needs_heads(self) -> bool:
        return True

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        # a bare objective has trained nothing: there were only features
        if self.needs_heads() and type(trained.objective) is not Objective:
            self._take_projection(trained.objective)
        super().after_base(trained, base)

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """The base session on features; a projection that no images have trained is trained on them first."""
        if self.projection.layer1[1].num_batches_tracked == 0 and self.full_recipe.head_epochs:
            pairs = list(pairs)
            self.fit_projection(torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs]), self.full_recipe)
        self._in_base = True  # base classes are not refined, however many images there are
        try:
            return super().fit_base_features(pairs)
        finally:
            self._in_base = False

    def fit_projection(self, z: Tensor, y: Tensor, recipe: Recipe, curve: str = "base_loss") -> None:
        """Train theta2 on base features [N, d] alone, by the recipe's loss on one view of each image."""
        objective, losses = heads_on_features(
            self.network, z, self.columns(y), recipe, n_classes=len(self.classes_), seed=self.seed
        )
        self.log_[curve] = list(losses)
        self._take_projection(objective)

    def _take_projection(self, objective: Objective) -> None:
        if not isinstance(objective, Strategy) or objective.projection is None:
            raise ValueError(NEEDS_PROJECTION.format(self.full_recipe.objective))
        self.projection.load_state_dict(objective.projection.state_dict())

    def grow(self, n: int) -> None:
        self.vanilla.grow(n)
        self.high.grow(n)

    # --- online -----------------------------------------------------------------------------------------------

    def learn(self, z: Tensor, y: Tensor) -> None:
        columns = self.columns(y)
        f = tukey(z, self.power)
        self.vanilla.update(f, columns)
        self.high.update(self.project(f), columns)
        self.pending_ += len(y)
        if self.refine_every and not self._in_base and self.pending_ >= self.refine_every:
            self.end_session()

    def without_boundaries(self) -> str:
        return "DSR refines when a session ends, and this stream has none: set refine_every to a number of images"

    def end_session(self) -> None:
        """The bi-level loop, once for what was observed since the last."""
        novel = slice(int(self.n_base_), len(self.classes_))
        if not self.pending_ or novel.start >= novel.stop:
            self.pending_.zero_()
            return
        h = self.high.mean.float()  # [K, D]
        self._note("cosine_before", mean_absolute_cosine(h).item())
        optimizer = self.outer_optimizer()
        for _ in range(self.iterations):
            if self.refine:
                h[novel] = self.lower_level(h[: novel.start], h[novel])
            if self.align:
                self.upper_level(h, optimizer)
        if self.iterations and self.refine:
            self.high.mean[novel] = h[novel].to(self.high.mean)  # base rows are never written
        self._note("cosine_after", mean_absolute_cosine(self.high.mean).item())
        self.pending_.zero_()

    @torch.enable_grad()
    def lower_level(self, base: Tensor, novel: Tensor) -> Tensor:
        """Novel prototypes [N, D] moved towards quasi-orthogonality by the fraction rho."""
        refined = novel.clone().requires_grad_()
        optimizer = torch.optim.SGD([refined], self.inner_lr, INNER_MOMENTUM, nesterov=True)
        for step in range(self.inner_steps):
            loss = separation(base, refined, self.phi)
            if step == 0:
                self._note("lower_loss", loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (1 - self.rho) * novel + self.rho * refined.detach()

    @torch.enable_grad()
    def upper_level(self, h: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """One step of the projection towards the prototypes, on sampled features."""
        n_base = self.samples if self.base_samples is None else self.base_samples
        n_novel = self.samples if self.novel_samples is None else self.novel_samples
        v, columns = self.sample(n_base, n_novel)
        loss = self.upper_loss(self.projection.eval()(v), h, columns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._note("upper_loss", loss.item())

    def upper_loss(self, high: Tensor, h: Tensor, columns: Tensor) -> Tensor:
        """A, of projected samples [N, D] of the classes in ``columns`` [N]."""
        return alignment(high, h[columns])

    def outer_optimizer(self) -> torch.optim.Optimizer:
        """New for each session, for theta2 alone."""
        return torch.optim.SGD(self.projection.parameters(), self.outer_lr)

    def sample(self, n_base: int, n_novel: int) -> tuple[Tensor, Tensor]:
        """Features [N, d] drawn from every class's Gaussian, class after class, and their columns [N]."""
        is_base = torch.arange(len(self.classes_)) < int(self.n_base_)
        counts = torch.where(is_base, n_base, n_novel) * (self.vanilla.count.cpu() > 0)
        columns = torch.arange(len(counts)).repeat_interleave(counts)
        noise = torch.randn(len(columns), self.feature_dim, generator=self.draw).to(self.device)
        columns = columns.to(self.device)
        return self.vanilla.mean.float()[columns] + self.spread(noise, columns), columns

    def spread(self, noise: Tensor, columns: Tensor) -> Tensor:
        """Standard normal noise [N, d] with the spread of its classes."""
        return noise * self.scale_of_classes().float()[columns]

    def scale_of_classes(self) -> Tensor:
        """The std of the samples [K, d]."""
        std = self.vanilla.std()
        is_base = torch.arange(len(std), device=std.device) < self.n_base_
        return (std + self.base_std_extra * is_base.to(std)[:, None]).clamp_min(STD_FLOOR)

    # --- answers ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def project(self, f: Tensor) -> Tensor:
        """theta2 of transformed features, in evaluation mode."""
        out: Tensor = self.projection.eval()(f)
        return out

    def score(self, z: Tensor) -> Tensor:
        high = F.normalize(self.project(tukey(z, self.power)), dim=1)  # [B, D]
        cosines = high @ F.normalize(self.high.mean, dim=1).to(high).T  # [B, K]
        return cosines.masked_fill(self.high.count == 0, float("-inf"))

    def network_state_names(self) -> set[str]:
        return {name for name in self.state_dict() if name.startswith(("network.", "projection."))}

    # --- forgetting: see nocl.merging -------------------------------------------------------------------------

    forgettable = True
    forgets_exactly = False  # the projection was aligned with samples of the class, and novel prototypes moved away

    def shrink(self, column: int) -> None:
        self.vanilla.remove(column)
        self.high.remove(column)

    def kept(self) -> str:
        spread = "variances" if self.vanilla.spread == "diagonal" else "covariance"
        return f"of each class: count, mean and {spread} of its features, mean of their projection; and the projection"

    def _note(self, curve: str, value: float) -> None:
        points = self.log_.setdefault(curve, [])
        assert isinstance(points, list)
        points.append(value)


def alignment(z: Tensor, target: Tensor) -> Tensor:
    """A: minus the mean cosine between rows and their targets, both [N, D]; -1 when all are parallel.

    >>> alignment(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(-1.)
    """
    return -F.cosine_similarity(z, target, dim=1).mean()


def penalty(cosine: Tensor, phi: Phi = "exp") -> Tensor:
    """phi. ``exp``: e^(4x) - 1, least at cosine -1; ``doubleexp``: e^(4x) + e^(-4x) - 2, least at 0.

    >>> penalty(torch.tensor([0.0, 0.25, 1.0]))
    tensor([ 0.0000,  1.7183, 53.5981])
    """
    towards = torch.expm1(4 * cosine)
    return towards if phi == "exp" else towards + torch.expm1(-4 * cosine)


def separation(base: Tensor, novel: Tensor, phi: Phi = "exp") -> Tensor:
    """J: the mean penalty of base-novel pairs plus that of unordered novel-novel pairs, of prototypes [K, D].

    A term without a pair is left out: one novel class has no partner, and there may be no base class.
    """
    u, v = F.normalize(base.tanh(), dim=1), F.normalize(novel.tanh(), dim=1)
    total = novel.new_zeros(())
    if len(u) and len(v):
        total = total + penalty(u @ v.T, phi).mean()
    if len(v) > 1:
        i, j = torch.triu_indices(len(v), len(v), offset=1, device=v.device)
        total = total + penalty((v @ v.T)[i, j], phi).mean()
    return total


def mean_absolute_cosine(h: Tensor) -> Tensor:
    """Mean |cos| over unordered pairs of rows [K, D], 0 for fewer than two: 0 means orthogonal."""
    if len(h) < 2:
        return h.new_zeros(())
    u = F.normalize(h, dim=1)
    i, j = torch.triu_indices(len(u), len(u), offset=1, device=u.device)
    return (u @ u.T)[i, j].abs().mean()
