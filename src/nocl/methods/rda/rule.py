"""Scores of all classes, derived from rda's statistics: Student's t around each class's predictive Gaussian.

    u = G (z - centre)                                        coordinates of ``ClassMeans``
    P_c = G Sigma_c G^T + diag(V_c),  D_c = (u - m_c)^T P_c^-1 (u - m_c)
    B = sum over coordinates of u^2 / (1 + e)                 the distance to a class of no images
    t(D) = - (nu + d) log(1 + D / nu),  s_c = t(D_c) - offset_c
    score of c = s_c + (1 - b_c / b) (max s - max s with the shared shape) - 0.9 t(B)

**Like is compared with like.** Classes of many images have a share b_c of their own shape, the best known b. An own
shape brings the images of its class nearer and puts all others further off, so images that fit no class well would go
to a class that has none. What the own shapes changed in the best score among the classes that have them is therefore
added to the others' scores, the more the less they have of their own; all of it, which base classes chose.

The last term is the same for all classes: it changes no answer and no probability, but makes scores of different images
comparable. An image that is unlike everything has a small t(D_c) for every class, and so has one that is merely far
out; against t(B), what an image of any class would have, only the first stands out. Its share was found on base classes
(benchmarks/familiarity.py).

A class whose own covariance has hardly any weight has P_c = I + diag(V_c), so that all such classes cost one matrix
product; others have a factor of P_c, made when first needed, a low-rank form, or a sketch (``sketches.py``).
Legend: K classes, d feature values, B images, C classes of a part, s rows of a sketch.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from nocl.methods.rda.covariances import LowRankInverses
from nocl.methods.rda.means import ClassMeans
from nocl.methods.rda.shortlist import Shortlist
from nocl.methods.rda.sketches import SketchedInverses
from nocl.stats import linalg
from nocl.stats.class_stats import tukey

_MATRICES_AT_ONCE = 64  # bounds the memory of factorising
BACKGROUND = 0.9  # share of t(B) in the scores
ALIKE = 1.0  # share of what own shapes changed, in the scores of classes without; benchmarks/first_pictures_of_base.py
_FACTORS_KEPT = 2048  # dense ones made for the shortlist's table and kept: 640 MB at d = 280
NORMAL, LOW, DENSE, SKETCHED = 0, 1, 2, 3  # kinds of P_c: diagonal, low-rank, a factor of its own, a sketch


class Rule:
    """What scoring needs; the classes' own factors and the shortlist are made on demand.

    ``offset`` [K] is subtracted from the scores, ``degrees`` is nu (None: the score is -D). ``kind`` [K] says what P_c
    is, ``own`` [K] the share of the class's own shape in it; ``covariances`` gives Sigma_c, float64 [C, d, d], of some
    classes.
    """

    def __init__(
        self,
        means: ClassMeans,
        count: Tensor,
        offset: Tensor,
        degrees: float | None,
        kind: Tensor,
        own: Tensor,
        covariances: Callable[[Tensor], Tensor],
        low: LowRankInverses | None = None,
        sketched: SketchedInverses | None = None,
    ) -> None:
        self.means, self.count, self.degrees, self.kind = means, count, degrees, kind
        self.covariances, self.low, self.sketched = covariances, low, sketched
        self.offset, self.lacking = offset.float(), lacking(own, count)
        self.turn, self.origin = means.turn.float(), (means.turn @ means.centre).float()
        self.mean = means.mean.float()  # [K, d]
        self.weight = (1 / (1 + means.variance)).float()  # [K, d], the diagonal of P_c^-1 where it is all of it
        self.unmet = (1 / (1 + means.between)).float()  # [d], the diagonal of P^-1 of a class of no images
        self.exact: dict[int, Tensor] = {}  # column: A [d, d] with A^T A = P_c^-1
        self._shortlist: Shortlist | None = None

    def scores(self, z: Tensor, shortlist: int | None = None) -> Tensor:
        """[B, K] of transformed features; exact for the ``shortlist`` most likely classes, or for all of them."""
        u = self.coordinates(z)
        return self._class_scores(u, shortlist) - background(u, self.unmet, self.degrees)[:, None]

    def _class_scores(self, u: Tensor, shortlist: int | None) -> Tensor:
        if bool((self.kind == NORMAL).all()):
            return self.score_of(self.plain_distances(u))
        n_classes = len(self.kind)
        wanted = n_classes if shortlist is None else min(shortlist, n_classes)
        distances = self.plain_distances(u) if wanted == n_classes else self.rough_distances(u)
        return self._exact(u, self.score_of(distances), wanted)

    def coordinates(self, z: Tensor) -> Tensor:
        return z @ self.turn.T - self.origin

    def score_of(self, distance: Tensor, columns: Tensor | slice = slice(None)) -> Tensor:
        """Scores of squared distances to the classes ``columns`` (default: all, in their order)."""
        return log_t(distance, self.degrees, self.mean.shape[1]) - self.offset[columns]

    def plain_distances(self, u: Tensor) -> Tensor:
        """D [B, K] where P_c is taken as I + diag(V_c)."""
        return diagonal_distances(u, self.mean, self.weight).clamp_min(0)

    def rough_distances(self, u: Tensor) -> Tensor:
        """D [B, K], nearly."""
        if self.sketched is not None:
            return self.plain_distances(u)  # a table of thousands of features would be larger than the sketches
        if self._shortlist is None:
            share = self.count[:, None] / self.count.sum()
            spread = 1 + (share * self.mean.square()).sum(0)  # within classes it is I
            self._shortlist = Shortlist(self.mean, spread, self._precisions)
        return self._shortlist.distances(u).clamp_min(0)

    def roots(self, classes: Tensor) -> Tensor:
        """A, float64 [C, d, d], with A^T A = P_c^-1."""
        predictive = self.means.turn @ self.covariances(classes) @ self.means.turn.T
        return linalg.inverse_root(predictive + torch.diag_embed(self.means.variance[classes]), "rda's covariances")

    def _precisions(self, columns: Tensor) -> Tensor:
        """P_c^-1, float32 [C, d, d]."""
        kind, out = self.kind[columns], torch.diag_embed(self.weight[columns])
        if self.low is not None and bool((kind == LOW).any()):
            out[kind == LOW] = self.low.dense(columns[kind == LOW])
        if bool((kind == DENSE).any()):
            roots = self.roots(columns[kind == DENSE]).to(out)
            if len(self.kind) <= _FACTORS_KEPT:
                self.exact.update(zip(columns[kind == DENSE].tolist(), roots))
            out[kind == DENSE] = roots.mT @ roots
        return out

    def _exact(self, u: Tensor, rough: Tensor, wanted: int) -> Tensor:
        """Exact scores of the ``wanted`` best classes of each image; the others below them in their old order."""
        best = rough.masked_fill(self.count == 0, float("-inf")).topk(wanted).indices  # [B, wanted]
        kind, out = self.kind[best], rough.clone()  # the rough score of a diagonal P_c is exact
        if self.low is not None and bool((kind == LOW).any()):
            scores = self.score_of(self.low.distances(u, self.mean, best), best)
            out.scatter_(1, best, torch.where(kind == LOW, scores, out.gather(1, best)))
        self._score_alone(u, best, kind == DENSE, out)
        self._score_alone(u, best, kind == SKETCHED, out)
        out = self._alike(u, best, out)
        if wanted == len(self.kind):
            return out
        left = torch.ones_like(out, dtype=torch.bool).scatter_(1, best, False)
        floor = out.masked_fill(left, float("inf")).amin(1, keepdim=True)
        highest = rough.masked_fill(~left, float("-inf")).amax(1, keepdim=True)
        return torch.where(left, floor + (rough - highest) - 1, out)

    def _alike(self, u: Tensor, best: Tensor, out: Tensor) -> Tensor:
        """Exact scores where a class is compared with others by the shape they share, as far as it has none."""
        if not bool(self.lacking.any()):
            return out
        shaped = (self.kind[best] != NORMAL) & (self.count[best] > 0)
        alone = self.score_of(self.plain_distances(u))
        return out + self.lacking * changed(out.gather(1, best), alone.gather(1, best), shaped)

    def _score_alone(self, u: Tensor, best: Tensor, wanted: Tensor, out: Tensor) -> None:
        """Write the scores of those pairs of an image and a class in ``best`` that are wanted, class by class."""
        if not bool(wanted.any()):
            return
        images, places = wanted.nonzero(as_tuple=True)
        columns, order = best[images, places].sort(stable=True)
        classes, counts = columns.unique_consecutive(return_counts=True)
        measures = self._measures(classes)
        for c, measure, rows in zip(classes.tolist(), measures, images[order].split(counts.tolist())):
            out[rows, c] = self.score_of(measure(u[rows] - self.mean[c]), slice(c, c + 1))

    def _measures(self, classes: Tensor) -> list[Callable[[Tensor], Tensor]]:
        """For each class, all dense or all sketched, the squared length of offsets [B, d] from its mean."""
        if self.sketched is not None:
            return [inverse.distances for inverse in self.sketched.of(classes.tolist())]
        missing = [c for c in classes.tolist() if c not in self.exact]
        for part in torch.tensor(missing, device=classes.device, dtype=torch.int64).split(_MATRICES_AT_ONCE):
            if len(part):
                self.exact.update(zip(part.tolist(), self.roots(part).to(self.mean)))
        return [partial(_through, self.exact[c]) for c in classes.tolist()]


class Portable(nn.Module):
    """The scores of all classes from features, everything derived beforehand, for exporting."""

    turn: Tensor
    origin: Tensor
    offset: Tensor
    mean: Tensor
    weight: Tensor
    unmet: Tensor
    roots: Tensor  # [K d, d], or empty where every P_c is diagonal; of sketches [K s, d]
    anchors: Tensor  # [K, d], of sketches [K, s]
    energies: Tensor  # [K, s], of sketches
    simple: Tensor  # [K, d], the diagonal of P_c^-1 with the shared shape
    lacking: Tensor  # [K]
    shaped: Tensor  # bool [K]

    def __init__(self, power: float, rule: Rule) -> None:
        super().__init__()
        self.power, self.degrees, self.shape = power, rule.degrees, rule.mean.shape
        for name in ("turn", "origin", "offset", "mean", "weight", "unmet", "lacking"):
            self.register_buffer(name, getattr(rule, name))
        self.register_buffer("simple", rule.weight)
        self.register_buffer("shaped", (rule.kind != NORMAL) & (rule.count > 0))
        self.alike = bool(rule.lacking.any())
        roots = rule.mean.new_zeros(0, *rule.mean.shape[1:])
        self.sketched = rule.sketched is not None
        everything = torch.arange(len(rule.kind), device=rule.mean.device)
        if rule.sketched is not None:
            inverses = rule.sketched.of(everything.tolist())
            roots = torch.stack([each.rows for each in inverses])
            own = rule.kind == SKETCHED
            self.register_buffer("energies", torch.stack([each.energies for each in inverses]) * own[:, None])
            self.weight = torch.where(own[:, None], torch.stack([each.diagonal for each in inverses]), self.weight)
        elif bool((rule.kind != NORMAL).any()):
            parts = [rule.roots(part).to(rule.mean) for part in everything.split(_MATRICES_AT_ONCE)]
            roots = torch.cat(parts)
        if len(roots):
            self.register_buffer("anchors", (roots @ rule.mean[:, :, None])[:, :, 0])
        self.register_buffer("roots", roots.reshape(-1, rule.mean.shape[1]))

    def forward(self, z: Tensor) -> Tensor:
        u = tukey(z, self.power) @ self.turn.T - self.origin
        if len(self.roots) and not self.sketched:
            seen = (u @ self.roots.T).view(-1, *self.anchors.shape)  # [B, K, d]
            distance = (seen - self.anchors).square().sum(2)
        else:
            distance = diagonal_distances(u, self.mean, self.weight)
        if self.sketched:
            seen = (u @ self.roots.T).view(-1, *self.anchors.shape)  # [B, K, s]
            distance = distance - ((seen - self.anchors).square() * self.energies).sum(2)
        scores = log_t(distance.clamp_min(0), self.degrees, self.shape[1]) - self.offset
        if self.alike:
            alone = diagonal_distances(u, self.mean, self.simple).clamp_min(0)
            alone = log_t(alone, self.degrees, self.shape[1]) - self.offset
            scores = scores + self.lacking * changed(scores, alone, self.shaped.expand_as(scores))
        return scores - background(u, self.unmet, self.degrees)[:, None]


def diagonal_distances(u: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """sum of weight (u - mean)^2 [B, K], for u [B, d], mean and weight [K, d]."""
    pulled = weight * mean
    distance: Tensor = u.square() @ weight.T - 2 * u @ pulled.T + (pulled * mean).sum(1)
    return distance


def _through(root: Tensor, away: Tensor) -> Tensor:
    return (away @ root.T).square().sum(1)


def lacking(own: Tensor, count: Tensor) -> Tensor:
    """What of an own shape each class lacks against the class that has most of it, by the share in the scores [K].

    >>> lacking(torch.tensor([0.0, 0.1, 0.2]), torch.tensor([1, 50, 200]))
    tensor([1.0000, 0.5000, 0.0000])
    """
    most = (own * (count > 0)).max() if len(own) else own.sum()
    return (ALIKE * (1 - own / most) * (count > 0)).float() if float(most) > 0 else torch.zeros_like(own).float()


def changed(own: Tensor, alone: Tensor, shaped: Tensor) -> Tensor:
    """[B, 1]: best score with own shapes less the best without, among the ``shaped`` of scores [B, C]; 0 where none."""
    nothing = torch.tensor(float("-inf"), device=own.device)
    gain = torch.where(shaped, own, nothing).amax(1) - torch.where(shaped, alone, nothing).amax(1)
    return torch.where(shaped.any(1), gain, 0)[:, None]


def background(u: Tensor, unmet: Tensor, degrees: float | None) -> Tensor:
    """What images at u [B, d] would score with a class of no images, by its share in all scores [B].

    Without degrees nobody knows how far apart classes lie: 0.
    """
    if degrees is None:
        return torch.zeros_like(u[:, 0])
    return BACKGROUND * log_t(u.square() @ unmet, degrees, u.shape[1])


def log_t(distance: Tensor, degrees: float | None, dim: int) -> Tensor:
    """Twice the logarithm of Student's t at that squared distance, less a constant; None degrees: of a Gaussian.

    >>> log_t(torch.tensor([0.0, 3.0]), 3.0, 5)
    tensor([-0.0000, -5.5452])
    """
    return -distance if degrees is None else -(degrees + dim) * torch.log1p(distance / degrees)
