"""RDA: streaming regularised discriminant analysis on features of several depths.

Friedman, "Regularized Discriminant Analysis" (JASA 1989), as a stream: each class is a Gaussian, its covariance is
shrunk towards the one all classes share, and an image goes to the class at the smallest Mahalanobis distance. All of
it follows from counts, means and scatter matrices, so it is exact in one pass, needs no second look, no image and no
gradient, and does not depend on the order of images, classes or batches.

    z = g(stages of theta1(x)),  g(u) = u^power                                    Tukey's ladder, power 0.5
    S_c = scatter of class c / (n_c - 1),   S = sum of all scatters / (N - K)       the shared covariance
    Sigma_c = (1 - l_c) S_c + l_c S + ridge tr(S)/d I,   l_c = prior d / (n_c - 1 + prior d)
    score of c = - (z - mu_c)^T Sigma_c^-1 (z - mu_c)  [+ d / n_c]  [- log det Sigma_c]

S itself must be known. Until ten images a feature value have been seen (N - K < 10 d; a base session brings far more),
the missing share of it is replaced by tr(S)/d I, so that a model of a few classes and images does not follow the
accidents of a nearly singular matrix.

``prior`` times d is a number of images: what the shared shape weighs against a class's own. A class of one image has
the shared shape, and the more images the more its own. (Sigma_c without the ridge is the mean of an inverse-Wishart
posterior. The number goes with d, because the images needed to know a covariance do.)

``unbiased`` takes the noise of the mean out of the distance: the mean of n images is itself off by Sigma_c / n, which
adds d/n to the expected squared distance of every image, so d/n is subtracted. Without it a class of a few images is
hardly ever chosen beside classes of hundreds.

``stages`` are the pooled outputs to use, side by side: early ones hold colour and texture that the base classes did not
need and novel ones may. ``flip`` scores each image and its mirror image and adds up: one more forward pass at test,
none while learning.

``storage`` decides what is kept of each class beside count and mean: ``full``, its covariance as a packed float32
triangle; ``lowrank``, the ``rank`` directions in which it differs most from the shared one (see
``ClassShapes``; brought to that form at the end of a session, the only use made of the boundary);
``shared``, nothing, so that all classes have the shared covariance (streaming LDA); ``mean``, nothing and no shared
covariance either (nearest mean).

``shortlist`` classes with the best approximate scores, found by one matrix product (``shortlist.py``), get their
exact score; the others are put below them in the order of their approximate scores. None scores every class exactly.

Where we differ from Friedman: his second parameter shrinks every class to a multiple of I by one fraction, ours shrinks
the shared covariance, and only while it rests on few images, beside a small constant ridge; his first weighs by total
counts with one fraction for all classes, ours by one number of images, so that classes of 1 and of 500 images can live
together; the log-determinant and the class priors are left out by default, because base classes, whose images trained
the network, have smaller covariances than test images of theirs deserve.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from nocl.learner import Common, FrozenLearner, Learner, UnsupportedError
from nocl.methods.rda.covariances import ClassShapes, LowRankInverses
from nocl.methods.rda.shortlist import Shortlist
from nocl.nets import StoredFeatures
from nocl.plumbing.parameters import Count, Natural, NonNegative, Positive, Range
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe
from nocl.stats import linalg
from nocl.stats.class_stats import ClassStats, check_features, shrink_covariances, tukey

_SAMPLES_AT_ONCE = 512  # bounds the memory of an update
_MATRICES_AT_ONCE = 64  # and of factorising
_FACTORS_KEPT = 2048  # dense ones made for the shortlist's table and kept: 640 MB at d = 280
_KNOWN_FROM = 10  # images a feature value, from which the shared covariance is taken as it is
_TINY = 1e-6  # variance where none has been seen yet
PRESETS: dict[str, dict[str, JSON]] = {
    # what `python benchmarks/tune_rda.py --backbone reduced_resnet18 --epochs 6` found, on base classes alone
    "tuned": {
        "stages": [2, 3, 4],
        "power": 0.75,
        "prior": 10.0,
        "ridge": 0.01,
        "unbiased": True,
        "log_determinant": True,
    },
    "compact": {"storage": "lowrank", "rank": 24},  # less than ten images a class
}


class RDA(FrozenLearner):
    """Regularised discriminant analysis, exact in one pass.

    Parameters
    ----------
    stages
        The stages of the network whose pooled outputs make the feature. None: the last one; ``"auto"``: the last three.
    power
        Power of the Tukey transform, from 0 to 2 (0: the logarithm); 1 changes nothing.
    prior
        Weight of the shared covariance against a class's own, above 0, in images for each feature value.
    ridge
        Added to every variance, 0 or more, as a share of the mean variance.
    log_determinant
        Take the log-determinant of the covariance into the score.
    unbiased
        Take the noise of a class mean out of the distance.
    storage
        What is kept of each class beside count and mean: ``full``, ``lowrank``, ``shared`` or ``mean`` (see above).
    rank
        Directions that ``lowrank`` keeps of a class, 0 or more (0: the shared covariance).
    shortlist
        Classes that get their exact score, 1 or more; None: all.
    flip
        Score each image and its mirror image, and add up.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    depends_on_batching: ClassVar[bool] = False
    depths: ClassVar[int] = 3
    statistics: ClassVar[tuple[str, ...]] = ("stats",)
    base_recipe = Recipe(
        epochs=25, schedule="onecycle", weight_decay=5e-4, augment="crop_flip", normalize=True
    )  # see docs/methods/rda.md
    presets: ClassVar[dict[str, dict[str, JSON]]] = PRESETS

    def __init__(
        self,
        *,
        stages: Sequence[int] | Literal["auto"] | None = "auto",
        power: Annotated[float, Range(0, 2)] = 0.5,
        prior: Positive = 3.0,
        ridge: NonNegative = 0.001,
        log_determinant: bool = False,
        unbiased: bool = True,
        storage: Literal["full", "lowrank", "shared", "mean"] = "full",
        rank: Natural = 24,
        shortlist: Count | None = 32,
        flip: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(stages=stages, **common)
        if flip and isinstance(self.network, StoredFeatures):
            raise ValueError(f"flip needs images to mirror and cannot be had with {self.backbone}; set flip=False")
        self.power, self.prior, self.ridge, self.log_determinant = power, prior, ridge, log_determinant
        self.unbiased = unbiased
        self.storage, self.rank, self.shortlist, self.flip = storage, rank, shortlist, flip
        self.stats = ClassStats(self.feature_dim, "none" if storage == "mean" else "shared")
        self.shapes = ClassShapes(self.feature_dim, rank if storage == "lowrank" else None)
        self._rule: linalg.Cached[_Rule] = linalg.Cached()

    @property
    def has_shapes(self) -> bool:
        """Whether each class has a covariance of its own."""
        return self.storage in ("full", "lowrank")

    def grow(self, n: int) -> None:
        self.stats.grow(n)
        if self.has_shapes:
            self.shapes.grow(n)

    def learn(self, z: Tensor, y: Tensor) -> None:
        check_features(z, self.feature_dim)  # before anything changes
        z, columns = tukey(z, self.power).to(self.stats.mean), self.columns(y)
        for part, where in zip(z.split(_SAMPLES_AT_ONCE), columns.split(_SAMPLES_AT_ONCE)):
            if self.has_shapes:
                self.shapes.update(part, where, self.stats)
            self.stats.update(part, where)

    # --- forgetting and merging: see Learner ------------------------------------------------------------------

    @property
    def forgets_exactly(self) -> bool:
        """With a whole covariance of each class the shared one is made anew from those that stay."""
        return self.storage in ("full", "mean")

    def kept(self) -> str:
        own = {"full": "mean and covariance", "lowrank": f"mean and {self.rank} directions of its covariance"}
        beside = "" if self.storage == "mean" else ", beside one covariance of all classes"
        return f"of each class: count, {own.get(self.storage, 'mean')} of its features{beside}"

    def shrink(self, column: int) -> None:
        super().shrink(column)
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
        super().absorb(other, columns)

    def release(self, other: Learner, columns: Tensor) -> None:
        assert isinstance(other, RDA)
        before = self.stats.count.clone(), self.stats.mean.clone()
        super().release(other, columns)  # refuses before anything has changed
        if self.has_shapes:
            self.shapes.subtract(other.shapes, columns, before, other.stats)

    def clear(self) -> None:
        super().clear()
        reference = self.shapes.reference
        self.shapes = ClassShapes(self.feature_dim, self.shapes.rank).to(self.device)
        self.shapes.reference = reference.clone()

    def portable_scorer(self) -> nn.Module:
        """Exact scores of all classes as one product: no shortlist, whose choice of classes cannot be exported."""
        if self.flip:
            raise UnsupportedError("rda with flip passes each image twice and cannot be exported; set flip=False")
        everything = torch.arange(len(self.stats), device=self.device)
        rule = self._derive()
        if not self.has_shapes:
            return _Portable(self.power, rule.mean, rule.basis.to(rule.mean)[None], -rule.noise)
        self._factorise(rule, everything)
        roots, sizes = zip(*(rule.exact[c] for c in everything.tolist()))
        return _Portable(
            self.power, rule.mean, torch.stack(roots), torch.stack(sizes) * self.log_determinant - rule.noise
        )

    def end_session(self) -> None:
        if self.storage == "lowrank" and len(self.stats):
            self.shapes.compress(self.stats.count, self.shared_covariance())

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        scores = super().decision_function(x)
        return scores + super().decision_function(x.flip(-1)) if self.flip else scores

    def score(self, z: Tensor) -> Tensor:
        z = tukey(z, self.power)
        state = (self.stats.mean, self.stats.count, self.shapes.row, self.shapes.triangle)
        rule = self._rule.get(state, self._derive)
        if self.has_shapes:
            wanted = len(self.stats) if self.shortlist is None else min(self.shortlist, len(self.stats))
            rough = self._rough_scores(z, rule) if wanted < len(self.stats) else rule.shared_scores(z)
            scores = self._exact_scores(z, rough, rule, wanted)
        else:
            scores = rule.shared_scores(z)  # [B, K]
        return scores.masked_fill(self.stats.count == 0, float("-inf"))

    def shared_covariance(self) -> Tensor:
        """The covariance within classes plus the ridge, float64 [d, d]."""
        shared, ridge = self._within()
        return shared + ridge

    def class_covariances(self, columns: Tensor) -> Tensor:
        """Sigma_c of these classes, float64 [C, d, d]."""
        shared, ridge = self._within()
        if not self.has_shapes:
            return (shared + ridge).expand(len(columns), -1, -1)
        own = self.shapes.scatter(columns, self.stats.count)
        return shrink_covariances(own, self.stats.count[columns], shared, self.prior * self.feature_dim) + ridge

    def _shares(self) -> Tensor:
        """l_c, the weight of the shared covariance, float64 [K]."""
        prior = self.prior * self.feature_dim
        return prior / ((self.stats.count - 1).clamp_min(0).double() + prior)

    def _within(self) -> tuple[Tensor, Tensor]:
        """S and the ridge matrix, each float64 [d, d]."""
        eye = torch.eye(self.feature_dim, dtype=torch.float64, device=self.stats.mean.device)
        if self.storage == "mean":
            return eye, torch.zeros_like(eye)
        shared = self.stats.shared_covariance(unbiased=True)
        level = shared.trace() / self.feature_dim
        free = self.stats.count.sum() - (self.stats.count > 0).sum()  # N - K
        missing = (1 - free / (_KNOWN_FROM * self.feature_dim)).clamp_min(0)
        return (1 - missing) * shared + missing * level * eye, (self.ridge * level).clamp_min(_TINY) * eye

    def _derive(self) -> "_Rule":
        root = linalg.inverse_root(self.shared_covariance(), "rda's shared covariance")
        noise = self.feature_dim / self.stats.count.clamp_min(1)
        if not self.unbiased or self.storage == "mean":  # without a covariance nobody knows how noisy a mean is
            noise = torch.zeros_like(noise)
        low = None
        if self.storage == "lowrank" and bool(self.shapes.reference.any()):
            low = LowRankInverses(self.shapes, self._shares(), root, self._within()[1])
        return _Rule(self.stats, root, noise, low)

    def _rough_scores(self, z: Tensor, rule: "_Rule") -> Tensor:
        """Approximate scores of all classes [B, K]."""
        if rule.shortlist is None:
            share = self.stats.count[:, None] / self.stats.count.sum()
            spread = 1 + (share * rule.seen.square()).sum(0)  # within classes it is I
            rule.shortlist = Shortlist(rule.seen, spread, lambda part: self._precisions(part, rule))
        distance = rule.shortlist.distances(rule.coordinates(z))
        return rule.noise - distance - rule.sizes

    def _precisions(self, columns: Tensor, rule: "_Rule") -> Tensor:
        """Inverse covariances in the coordinates of the rule, float32 [C, d, d]."""
        closed = self._closed(columns, rule)
        out = rule.mean.new_empty(len(columns), self.feature_dim, self.feature_dim)
        if rule.low is not None and bool(closed.any()):
            out[closed] = rule.low.dense(columns[closed])
            rule.sizes[columns[closed]] = rule.low.sizes[columns[closed]].to(rule.sizes) * self.log_determinant
        if not bool(closed.all()):
            roots, sizes = self._roots(columns[~closed])
            rule.sizes[columns[~closed]] = sizes.to(rule.sizes)
            if len(self.stats) <= _FACTORS_KEPT:
                rule.keep(columns[~closed], roots, sizes)
            seen = (roots @ rule.back).to(out)  # A G^-1
            out[~closed] = seen.mT @ seen
        return out

    def _exact_scores(self, z: Tensor, rough: Tensor, rule: "_Rule", wanted: int) -> Tensor:
        """Exact scores of the ``wanted`` best classes of each image; the others below them in their old order."""
        best = rough.masked_fill(self.stats.count == 0, float("-inf")).topk(wanted).indices  # [B, wanted]
        closed = self._closed(best, rule)
        out = torch.full_like(rough, float("nan"))
        if rule.low is not None and bool(closed.any()):
            distance = rule.low.distances(rule.coordinates(z), rule.seen, best)
            sizes = rule.low.sizes.float()[best] if self.log_determinant else 0
            out.scatter_(1, best, rule.noise[best] - distance - sizes)
        self._score_dense(z, best, ~closed, rule, out)
        if wanted == len(self.stats):
            return out
        left = torch.ones_like(out, dtype=torch.bool).scatter_(1, best, False)
        floor = out.masked_fill(left, float("inf")).amin(1, keepdim=True)
        highest = rough.masked_fill(~left, float("-inf")).amax(1, keepdim=True)
        return torch.where(left, floor + (rough - highest) - 1, out)

    def _score_dense(self, z: Tensor, best: Tensor, wanted: Tensor, rule: "_Rule", out: Tensor) -> None:
        """Write the scores of those pairs of an image and a class in ``best`` whose class has a dense factor."""
        if not bool(wanted.any()):
            return
        images, places = wanted.nonzero(as_tuple=True)
        columns, order = best[images, places].sort(stable=True)
        classes, counts = columns.unique_consecutive(return_counts=True)
        self._factorise(rule, classes)
        for c, rows in zip(classes.tolist(), images[order].split(counts.tolist())):
            root, log_determinant = rule.exact[c]
            distance = ((z[rows] - rule.mean[c]) @ root.T).square().sum(1)
            out[rows, c] = rule.noise[c] - distance - (log_determinant if self.log_determinant else 0)

    def _closed(self, columns: Tensor, rule: "_Rule") -> Tensor:
        """Which of these classes are in low-rank form."""
        return (self.shapes.row[columns] < 0) & (rule.low is not None)

    def _factorise(self, rule: "_Rule", classes: Tensor) -> None:
        missing = [c for c in classes.tolist() if c not in rule.exact]
        for part in torch.tensor(missing, device=classes.device, dtype=torch.int64).split(_MATRICES_AT_ONCE):
            if len(part):
                rule.keep(part, *self._roots(part))

    def _roots(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse roots, float64 [C, d, d], and log-determinants (zeros where they are not wanted)."""
        roots = linalg.inverse_root(self.class_covariances(classes), "rda's class covariances")
        sizes = -2 * torch.linalg.slogdet(roots).logabsdet if self.log_determinant else roots.new_zeros(len(classes))
        return roots, sizes


class _Portable(nn.Module):
    """Minus the squared distances to all classes, from features; means [K, d], inverse roots [K or 1, d, d]."""

    roots: Tensor  # [K d, d]
    anchors: Tensor  # [K, d]
    sizes: Tensor  # [K]

    def __init__(self, power: float, mean: Tensor, roots: Tensor, sizes: Tensor) -> None:
        super().__init__()
        self.power, self.shape = power, (len(mean) if len(roots) > 1 else 1, mean.shape[1])
        self.register_buffer("roots", roots.reshape(-1, roots.shape[-1]))
        self.register_buffer("anchors", (roots @ mean[:, :, None])[:, :, 0])
        self.register_buffer("sizes", sizes)

    def forward(self, z: Tensor) -> Tensor:
        seen = (tukey(z, self.power) @ self.roots.T).view(-1, *self.shape)  # [B, K, d]
        return -(seen - self.anchors).square().sum(2) - self.sizes


class _Rule:
    """What scoring needs, derived from the statistics; the classes' own factors and the shortlist on demand.

    Its coordinates have the origin amid the classes and the shared covariance I.
    """

    def __init__(self, stats: ClassStats, root: Tensor, noise: Tensor, low: LowRankInverses | None) -> None:
        self.mean, self.low = stats.mean.float(), low
        self.noise = noise.float()  # [K], what the means' noise adds to the distances
        self.basis = root if low is None else low.basis  # G, float64 [d, d]
        self.back = torch.linalg.inv(self.basis)
        centre = (stats.count[:, None] * stats.mean).sum(0) / stats.count.sum().clamp_min(1)
        self.turn, self.origin = self.basis.float(), (self.basis @ centre).float()
        self.seen = ((stats.mean - centre) @ self.basis.T).float()  # [K, d], the means
        self.exact: dict[int, tuple[Tensor, Tensor]] = {}  # column: inverse root, log-determinant
        self.sizes = torch.zeros_like(self.noise)  # [K], log-determinants for the shortlist, if wanted
        self.shortlist: Shortlist | None = None

    def coordinates(self, z: Tensor) -> Tensor:
        return z @ self.turn.T - self.origin

    def keep(self, columns: Tensor, roots: Tensor, sizes: Tensor) -> None:
        """Remember these classes' factors."""
        for c, root, size in zip(columns.tolist(), roots.to(self.mean), sizes.to(self.mean)):
            self.exact[c] = (root, size)

    def shared_scores(self, z: Tensor) -> Tensor:
        """Scores under the shared covariance [B, K]."""
        u = self.coordinates(z)
        return self.noise - (self.seen.square().sum(1) - 2 * u @ self.seen.T + u.square().sum(1, keepdim=True))
