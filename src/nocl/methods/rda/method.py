"""RDA: streaming regularised discriminant analysis on features of several depths.

Friedman, "Regularized Discriminant Analysis" (JASA 1989), as a stream: each class is a Gaussian, its covariance is
shrunk towards the one all classes share, its mean is known as well as its images allow, and an image goes to the class
that explains it best. All of it follows from counts, means and scatter matrices, so it is exact in one pass, needs no
second look, no image and no gradient, and does not depend on the order of images, classes or batches.

    z = g(stages of theta1(x)),  g(u) = u^power                                    Tukey's ladder, power 0.5
    S_c = scatter of class c / (n_c - 1),   S = sum of all scatters / (N - K)       the shared covariance
    Sigma_c = (1 - l_c) S_c + l_c S + ridge tr(S)/d I,   l_c = 1 - b_c + r B_c,   b_c = (n_c - 1) / (n_c - 1 + prior d)
    m_c, V_c = posterior mean and variance of the class's mean                      means.py
    D_c = (z - m_c)^T (Sigma_c + V_c)^-1 (z - m_c),   L_c = sum of log(1 + V_c)
    P_c = caution (r (L_c - L) + (1 - r) X_c + 5 / (K - 1) X_c + T r^(1/4) F_c)     what a class pays: payments.py
    score of c = - (nu + d) log(1 + D_c / nu) - P_c + what own shapes changed for others (rule.py)
    B_c, X_c, F_c = what b_c, L_c and 1 / (1 + ((n_c - 1) / 3)^2) exceed their means over all classes by
    L = the least L_c,   T = the temperature,   r = 1 / (1 + ((N - K) / d)^1.5), what is unknown of S

**A mean is uncertain.** One image says little about where its class lies. The means of the other classes say how far
apart classes lie; with that prior, a class of one image is broad (V_c large) and pays for it (L_c), so that it neither
takes others' images nor is never chosen. For many images V_c goes to 1 / n_c, L_c to 0 (``means.py``).
**Tails are heavy.** Distances of real images vary as if there were 6 to 60 dimensions, not 280, so Student's t with
``degrees`` nu replaces the Gaussian. From 5 to 100 degrees answers hardly differ.
**Few images pay** (``payments.py``), and a class without a shape of its own is compared with the others by the shape
they share (``rule.py``). ``caution`` is the one setting for what the old classes may lose for a new one: with its
default a new class is recognised most often while base classes lose at most about a point.
**S itself must be known.** It rests on N - K images and is too narrow where it looks narrow, so the share r of it is
replaced by a round one (``shared.py``): nearly all with a handful of images, two thousandths after a base session.

``prior`` times d is a number of images, as the images needed to know a covariance go with d: what the shared shape
weighs against a class's own. (Sigma_c without ridge and r is the mean of an inverse-Wishart posterior.) Beside a round
S its own shape widens a class, so while S is unknown none has more of it than all on average. Below a weight of 1 % it
is left out: these classes cost one matrix product together.

``stages`` are the pooled outputs to use, side by side: early ones hold colour and texture that novel classes may need.
The mean over positions says how much of something there is, the spread how it is distributed.
``flip`` scores each image and its mirror image and adds up: one more forward pass at test, none while learning.
``storage`` decides what is kept of each class beside count and mean: ``full``, its covariance as a packed float32
triangle; ``lowrank``, the ``rank`` directions in which it differs most from the shared one (``ClassShapes``; brought to
that form at the end of a session, the only use made of the boundary); ``sketch``, rows that add up like the covariance
and show its largest directions (``sketches.py``; at most 170 kB; the base session decides where they look); ``shared``,
nothing: streaming LDA; ``mean``, not even a shared covariance: nearest mean, nobody knows how uncertain a mean is.

``shortlist`` classes with the best approximate scores (``shortlist.py``) get their exact score, the others are below.
Where we differ from Friedman: his second parameter shrinks every class to a multiple of I by one fraction, ours shrinks
the shared covariance, and only while it rests on few images, beside a small constant ridge. His first is one fraction
for all classes, ours one number of images, so that a class of 1 image and one of 500 are both treated well. Means have
a prior and tails are a t's. The log-determinant of Sigma_c is left out (it would favour base classes, whose covariances
were measured on images that trained the network), and so are class priors.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Annotated, ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor, nn

from nocl.learner import Common, FrozenLearner, Learner, UnsupportedError
from nocl.methods.rda.covariances import ClassShapes, LowRankInverses, common_basis
from nocl.methods.rda.means import ClassMeans, above_mean
from nocl.methods.rda.payments import Paying, paid
from nocl.methods.rda.rule import DENSE, LOW, NORMAL, SKETCHED, Portable, Rule
from nocl.methods.rda.shared import Shared
from nocl.methods.rda.sketches import ClassSketches, SketchedInverses, filled, rows_for
from nocl.methods.rda.temperature import temperature
from nocl.nets import StoredFeatures
from nocl.plumbing.parameters import Count, Natural, NonNegative, Positive, Range
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe
from nocl.stats import linalg
from nocl.stats.class_stats import ClassStats, check_features, tukey

_SAMPLES_AT_ONCE = 512  # bounds the memory of an update
_MATRICES_AT_ONCE = 64  # and of factorising
_OWN_FROM = 0.01  # weight from which a class has its own covariance: below, the shared one does as well and costs least
_FULL_UP_TO = 640  # feature values: 820 kB a class; see benchmarks/large_features.py for what it costs beyond
_LOOKED_AT = 2  # base images a feature value that aim the sketches: as much memory as the shared covariance
PRESETS: dict[str, dict[str, JSON]] = {
    "compact": {"storage": "lowrank", "rank": 24},  # as many bytes as fifteen images a class
}


class RDA(FrozenLearner):
    """Regularised discriminant analysis, exact in one pass.

    Parameters
    ----------
    stages
        The stages of the network whose pooled outputs make the feature, such as ``[2, 3, 4]``; ``-2`` is the spread of
        stage 2 over its positions. None: the last one. ``"auto"``: the means of all and the spreads of all but the
        last, or, where that is more than 640 values, the means of the last three.
    power
        Power of the Tukey transform, from 0 to 2 (0: the logarithm); 1 changes nothing.
    prior
        Weight of the shared covariance against a class's own, above 0, in images for each feature value.
    ridge
        Added to every variance, 0 or more, as a share of the mean variance.
    degrees
        Degrees of freedom of Student's t, above 0: how heavy the tails are (a million: a Gaussian).
    caution
        What the old classes may lose for a new one of few images, 0 or more: the more, the less they lose and the less
        often the new class is recognised. 0: a class pays nothing for its uncertain mean; base classes chose 1.
    storage
        What is kept of each class beside count and mean: ``full``, ``lowrank``, ``sketch``, ``shared`` or ``mean`` (see
        above). ``"auto"``: ``full`` up to 640 feature values, ``sketch`` beyond, ``shared`` from 9,500 on.
    rank
        Directions that ``lowrank`` keeps of a class, 0 or more (0: the shared covariance).
    shortlist
        Classes that get their exact score, 1 or more; None: all.
    flip
        Score each image and its mirror image, and add up.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    # 1: without a posterior of means; 2: L_c by 1 / n_c; 3: without B_c and r^4; 4: round without the strength;
    # 5: sketches filled with a share of the shared covariance; 6 to 9: other P_c, and m_c believed its own average
    scoring: ClassVar[int] = 10
    former: ClassVar[Mapping[str, tuple[int, tuple[JSON, ...]]]] = {"caution": (10, (1.0, 1.2, 2.0))}
    softmax_scale: ClassVar[float] = 2.0  # scores of Gaussian vectors are log densities times 2
    depends_on_batching: ClassVar[bool] = False
    learns_from_one_image: ClassVar[bool] = True
    depths: ClassVar[int] = 3
    retired: ClassVar[Mapping[str, JSON | EllipsisType]] = {"unbiased": ..., "log_determinant": ...}  # first edition's
    statistics: ClassVar[tuple[str, ...]] = ("stats",)
    base_recipe = Recipe(
        epochs=25, schedule="onecycle", weight_decay=5e-4, augment="crop_flip", normalize=True
    )  # see docs/methods/rda.md
    presets: ClassVar[dict[str, dict[str, JSON]]] = PRESETS
    search_space = ("power=0.2:1", "prior=0.3:30:log", "ridge=0.0001:0.1:log")

    def __init__(
        self,
        *,
        stages: Sequence[int] | Literal["auto"] | None = "auto",
        power: Annotated[float, Range(0, 2)] = 0.5,
        prior: Positive = 3.0,
        ridge: NonNegative = 0.001,
        degrees: Positive = 100.0,
        caution: NonNegative = 1.0,
        storage: Literal["auto", "full", "lowrank", "sketch", "shared", "mean"] = "auto",
        rank: Natural = 24,
        shortlist: Count | None = 32,
        flip: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(stages=stages, **common)
        if flip and isinstance(self.network, StoredFeatures):
            raise ValueError(f"flip needs images to mirror and cannot be had with {self.backbone}; set flip=False")
        self.power, self.prior, self.ridge = power, prior, ridge
        self.degrees, self.caution = degrees, caution
        if storage == "auto":
            beyond: Literal["sketch", "shared"] = "sketch" if rows_for(self.feature_dim) else "shared"
            storage = "full" if self.feature_dim <= _FULL_UP_TO else beyond
        self.storage, self.rank, self.shortlist, self.flip = storage, rank, shortlist, flip
        self.stats = ClassStats(self.feature_dim, "none" if storage == "mean" else "shared")
        self.shapes = ClassShapes(self.feature_dim, rank if storage == "lowrank" else None)
        self.sketches = ClassSketches(self.feature_dim, rows_for(self.feature_dim) if storage == "sketch" else 0)
        self._rule: linalg.Cached[Rule] = linalg.Cached()

    def usual_stages(self) -> tuple[int, ...]:
        """The means of all stages and the spreads of all but the last; where that is too wide, the last means alone."""
        network = self.network
        every = network.last_stages(network.n_stages)
        stages = (*every, *[-stage for stage in every[:-1]])
        if network.has_maps and network.feature_dim(self.image_size, stages) <= _FULL_UP_TO:
            return stages
        return network.last_stages(self.depths)

    @property
    def sees_images(self) -> bool:
        return self.flip

    @property
    def has_shapes(self) -> bool:
        """Whether each class has a covariance of its own, whole or of low rank."""
        return self.storage in ("full", "lowrank")

    @property
    def has_sketches(self) -> bool:
        """Whether each class has the largest directions of its covariance."""
        return self.storage == "sketch"

    def grow(self, n: int) -> None:
        self.stats.grow(n)
        if self.has_shapes:
            self.shapes.grow(n)
        self.sketches.grow(n)

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        if not self.has_sketches or bool(self.stats.count.any()):
            return super().fit_base_features(pairs)
        pairs, first, images = iter(pairs), [], 0
        for z, y in pairs:
            first.append((z, y))
            images += len(z)
            if images >= _LOOKED_AT * self.feature_dim:
                break
        self._aim_sketches(first)
        return super().fit_base_features(itertools.chain(first, pairs))

    def _aim_sketches(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Turn the sketches' vectors to where these images vary within their classes, if they are enough to know it."""
        y = torch.cat([labels for _, labels in pairs]) if pairs else torch.zeros(0)
        if len(y) - len(y.unique()) < self.feature_dim:
            return
        for z, _ in pairs:
            check_features(z, self.feature_dim)
        columns, stats = self.columns(y), ClassStats(self.feature_dim, "shared").to(self.device)
        stats.grow(len(self.classes_))
        for (z, _), where in zip(pairs, columns.split([len(z) for z, _ in pairs])):
            stats.update(tukey(z, self.power).to(stats.mean), where)
        shared = Shared(stats, strong=self.power != 1)
        self.sketches.look_along(shared.matrix + shared.ridge(self.ridge), columns.unique())

    def learn(self, z: Tensor, y: Tensor) -> None:
        check_features(z, self.feature_dim)  # before anything changes
        z, columns = tukey(z, self.power).to(self.stats.mean), self.columns(y)
        for part, where in zip(z.split(_SAMPLES_AT_ONCE), columns.split(_SAMPLES_AT_ONCE)):
            if self.has_shapes:
                self.shapes.update(part, where, self.stats)
            if self.has_sketches:
                self.sketches.update(part, where, self.stats)
            self.stats.update(part, where)

    # --- forgetting and merging: see Learner ------------------------------------------------------------------

    @property
    def forgets_exactly(self) -> bool:
        """With a whole covariance of each class the shared one is made anew from those that stay."""
        whole = self.storage in ("full", "mean")
        return all(map(self.leaves_no_trace, self._column)) if self.has_sketches else whole

    def leaves_no_trace(self, label: int) -> bool:
        """A sketch knows all of a class of one image more than it has rows, if none of them aimed the sketches."""
        if not self.has_sketches:
            return self.forgets_exactly
        column = self._column[label]
        return int(self.stats.count[column]) <= self.sketches.rows + 1 and not bool(self.sketches.aimed[column])

    def kept(self) -> str:
        whole = self.sketches.rows * self.feature_dim >= self.feature_dim * (self.feature_dim + 1) // 2
        own = {
            "full": "mean and covariance", "lowrank": f"mean and {self.rank} directions of its covariance",
            "sketch": f"mean and {self.sketches.rows} sums of products{' (its covariance)' if whole else ''}",
        }  # fmt: skip
        beside = "" if self.storage == "mean" else ", beside one covariance of all classes"
        return f"of each class: count, {own.get(self.storage, 'mean')} of its features{beside}"

    def shrink(self, column: int) -> None:
        if self.has_sketches:
            self.stats.scatter -= self.sketches.scatter(torch.tensor([column], device=self.device))[0]
        super().shrink(column)
        self.sketches.remove(column)
        if self.has_sketches and bool((self.stats.count <= self.sketches.rows + 1).all()):
            self.stats.scatter = self.sketches.total()  # all that is left, without the rounding of what went
        if self.has_shapes:
            self.shapes.remove(column)
        if self.storage == "full":
            self.stats.scatter.zero_()
            for part in torch.arange(len(self.stats), device=self.device).split(_MATRICES_AT_ONCE):
                self.stats.scatter += self.shapes.scatter(part, self.stats.count).sum(0)

    def absorb(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, RDA)
        if self.has_shapes:
            self.shapes.merge(other.shapes, columns, self.stats, other.stats)
        if self.has_sketches:
            self.sketches.merge(other.sketches, columns, self.stats, other.stats)
        super().absorb(other, columns)

    def release(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, RDA)
        before = self.stats.count.clone(), self.stats.mean.clone()
        super().release(other, columns)  # refuses before anything has changed
        if self.has_shapes:
            self.shapes.subtract(other.shapes, columns, before, other.stats)
        if self.has_sketches:
            self.sketches.subtract(other.sketches, columns, before, other.stats)

    def clear(self) -> None:
        super().clear()
        reference = self.shapes.reference
        self.shapes = ClassShapes(self.feature_dim, self.shapes.rank).to(self.device)
        self.shapes.reference = reference.clone()
        shaped = self.sketches.shaped
        self.sketches = ClassSketches(self.feature_dim, self.sketches.rows).to(self.device)
        self.sketches.shaped = shaped.clone()

    def portable_scorer(self) -> nn.Module:
        """Exact scores of all classes as one product: no shortlist, whose choice of classes cannot be exported."""
        if self.flip:
            raise UnsupportedError("rda with flip passes each image twice and cannot be exported; set flip=False")
        return Portable(self.power, self._derive())

    def end_session(self) -> None:
        if self.storage == "lowrank" and len(self.stats):
            self.shapes.compress(self.stats.count, self.shared_covariance())

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        scores = super().decision_function(x)
        return scores + super().decision_function(x.flip(-1)) if self.flip else scores

    def score(self, z: Tensor) -> Tensor:
        scores = self._current().scores(tukey(z, self.power), self.shortlist)
        return scores.masked_fill(self.stats.count == 0, float("-inf"))

    def softmax_temperature(self) -> float:
        """From what is known of the shared covariance and how far apart classes lie; see docs/methods/rda.md."""
        if not len(self.stats) or self.storage == "mean":
            return 1.0
        return (1 + self.flip) * temperature(self.unknown(), self.squared_length_of_means())

    def squared_length_of_means(self) -> float:
        """Mean over classes of the squared length of their posterior means, where the shared covariance is I."""
        return self._current().means.squared_length

    def unknown(self) -> float:
        """r, the share of the shared covariance that is not known yet: 1 at first, 0 with many images."""
        return float(self._shared().unknown)

    def _current(self) -> Rule:
        state = (
            self.stats.mean, self.stats.count, self.stats.scatter, self.shapes.row, self.shapes.triangle,
            self.sketches.sketch,
        )  # fmt: skip
        return self._rule.get(state, self._derive)

    def shared_covariance(self) -> Tensor:
        """The covariance within classes plus the ridge, float64 [d, d]."""
        shared, ridge = self._within()
        return shared + ridge

    def class_covariances(self, columns: Tensor) -> Tensor:
        """Sigma_c of these classes, float64 [C, d, d]."""
        shared, ridge = self._within()
        if not self.has_shapes and not self.has_sketches:
            return (shared + ridge).expand(len(columns), -1, -1)
        share, weight = (each[columns, None, None] for each in (self._shares(), self._weights()))
        if self.has_sketches:
            unseen = self.sketches.unseen(self.stats.count[columns])
            own = weight * self.sketches.scatter(columns)
            return filled(shared + ridge, share[:, 0, 0], own, unseen, self.sketches.directions)
        return share * shared + weight * self.shapes.scatter(columns, self.stats.count) + ridge

    def _shares(self) -> Tensor:
        """l_c, the weight of the shared covariance, float64 [K]."""
        beyond_first = (self.stats.count - 1).clamp_min(0).double()
        own = beyond_first / (beyond_first + self.prior * self.feature_dim)
        return 1 - own + self._shared().unknown * above_mean(own, self.stats.count > 0)

    def _weights(self) -> Tensor:
        """(1 - l_c) / (n_c - 1), the weight of a class's own scatter, float64 [K]."""
        return (1 - self._shares()) / (self.stats.count - 1).clamp_min(1)

    def _within(self) -> tuple[Tensor, Tensor]:
        """S and the ridge matrix, each float64 [d, d]."""
        if self.storage == "mean":
            eye = torch.eye(self.feature_dim, dtype=torch.float64, device=self.stats.mean.device)
            return eye, torch.zeros_like(eye)
        shared = self._shared()
        return shared.matrix, shared.ridge(self.ridge)

    def _shared(self) -> Shared:
        return Shared(self.stats, strong=self.power != 1)

    def payments(self, means: ClassMeans) -> Tensor:
        """P_c, what is taken off each class's score for its few images, float64 [K]."""
        unknown = self._shared().unknown
        usual = temperature(float(unknown), means.squared_length)
        return self.caution * paid(means, self.stats.count, unknown, usual, Paying())

    def _derive(self) -> Rule:
        if self.storage == "mean":
            means = ClassMeans.certain(self.stats.mean)
            nothing = torch.zeros_like(self.stats.count)
            return Rule(means, self.stats.count, nothing, None, nothing, nothing, self.class_covariances)
        root = linalg.inverse_root(self.shared_covariance(), "rda's shared covariance")
        usual = SKETCHED if self.has_sketches else DENSE
        kind = torch.where(self._shares() <= 1 - _OWN_FROM, usual, NORMAL) * (self.has_shapes or self.has_sketches)
        low, closed = None, self.storage == "lowrank" and bool(self.shapes.reference.any())
        known, vague = (self.stats.count, self.stats.mean), float(self._shared().unknown ** 4)
        if closed:
            basis, values = common_basis(self.shapes, root, self._within()[1])
            means = ClassMeans(*known, basis, self._shared().noise(basis, vague), vague=vague, rotate=False)
            low = LowRankInverses(self.shapes, self._shares(), basis, values, means.variance)
            kind = torch.where(self.shapes.row < 0, LOW, kind)
        else:
            means = ClassMeans(*known, root, self._shared().noise(root, vague), vague=vague)
        offset = self.payments(means)
        sketched = None
        if self.has_sketches:
            sketched = SketchedInverses(
                self.sketches, self._shares(), self._weights(), self.sketches.unseen(self.stats.count),
                turn=means.turn, variance=means.variance, whole=self.shared_covariance(),
            )  # fmt: skip
        own = (1 - self._shares()) * (kind != NORMAL)
        return Rule(means, self.stats.count, offset, self.degrees, kind, own, self.class_covariances, low, sketched)
