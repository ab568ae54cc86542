"""The largest directions of each class's covariance, for features too many to keep a whole one: a linear sketch.

A class's scatter S_c is seen through s fixed random vectors Omega [d, s]:

    Y_c = Omega^T S_c                     [s, d], all that is kept
    S_c ~ Y_c^T (Y_c Omega)^-1 Y_c = F_c^T F_c     Nystroem's approximation, of rank s

Y_c is linear in S_c. So it adds up over images, batches and learners, whatever their order, and can be subtracted,
which a truncated decomposition cannot. The approximation is exact for a class of up to s + 1 images, never larger than
S_c, and holds most of its few large directions otherwise; those are what a class's own covariance is needed for.

Which vectors Omega has, decides how much of S_c they show. Drawn blindly they are the same for every learner. After a
base session large enough to know the shared covariance T they are T times the blind ones: those point where classes
vary most, and classes met later vary in much the same directions. Learners with the same vectors add up exactly; one
with others is seen through ours, which is exact up to s + 1 images of a class and approximate beyond.

A sketch shows how the s values Omega^T z of an image vary in a class, and what of z follows from them. It does not
show how z varies where these values are fixed. That part is taken from the shared covariance T = S + ridge:

    own_c = F_c^T F_c / (n_c - 1) + h_c (T - T Omega (Omega^T T Omega)^-1 Omega^T T),   h_c = (1 - s / (n_c - 1))_+
    Sigma_c = l_c T + (1 - l_c) own_c

h_c is what s fitted values leave of n_c - 1 degrees of freedom: with it own_c is S_c / (n_c - 1) on average wherever
the unseen part is the shared one, and is S_c / (n_c - 1) itself for up to s + 1 images. (With h_c = 1 it would be the
BFGS update of T to the seen values.) In the coordinates u of the rule, where T is I, P_c = diag(t) + A_c^T A_c -
b_c Q Q^T, with t = l_c + b_c + V_c, b_c = (1 - l_c) h_c and Q an orthonormal basis of the seen directions; its inverse
is diag(1/t) - R_c^T diag(e) R_c by Woodbury's identity. Halko, Martinsson, Tropp (SIAM Review 2011), section 5; Tropp
et al. (NeurIPS 2017) for streams. Legend: K classes, d feature values, C classes of one batch.
"""

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nocl.methods.rda.covariances import increments
from nocl.plumbing.seeding import generator
from nocl.stats.class_stats import ClassStats

_log = logging.getLogger(__name__)
BYTES = 190_000  # of a class at most, its mean and its share of the rest counted as two rows of float64
_LEAST = 1e-5  # of the largest eigenvalue of Y Omega: below, rounding of float32 rules
_CLASSES_AT_ONCE = 64


def rows_for(dim: int) -> int:
    """How many rows a sketch of vectors of that length has: all that it could use, or as many as are few enough bytes.

    >>> rows_for(100), rows_for(1280), rows_for(1712), rows_for(100_000)
    (100, 33, 23, 0)
    """
    return min(dim, max(0, BYTES - 16 * dim) // (4 * dim))


class ClassSketches(nn.Module):
    """The sketch of each class's scatter."""

    sketch: Tensor  # float32 [K, s, d], Y
    blind: Tensor  # float64 [d, s], the vectors of every learner of these sizes before it knows better
    shaped: Tensor  # float32 [d, s], the vectors after a base session; [0, s]: the blind ones
    aimed: Tensor  # bool [K], whether images of the class took part in choosing the vectors, so that they tell of it

    def __init__(self, dim: int, rows: int) -> None:
        super().__init__()
        self.dim, self.rows = dim, rows
        self.register_buffer("sketch", torch.zeros(0, rows, dim), persistent=rows > 0)  # other storages save nothing
        drawn = torch.randn(dim, rows, generator=generator(0, "sketch"), dtype=torch.float64)
        self.register_buffer("blind", drawn, persistent=False)
        self.register_buffer("shaped", torch.zeros(0, rows), persistent=rows > 0)
        self.register_buffer("aimed", torch.zeros(0, dtype=torch.bool), persistent=rows > 0)

    def __len__(self) -> int:
        return len(self.sketch)

    @property
    def directions(self) -> Tensor:
        """Omega, float64 [d, s]."""
        return self.shaped.double() if len(self.shaped) else self.blind

    @torch.no_grad()
    def look_along(self, covariance: Tensor, columns: Tensor) -> None:
        """Turn the vectors to where this covariance [d, d] of these classes is large; before anything is learned."""
        self.shaped = torch.linalg.qr(covariance @ self.blind).Q.float()
        self.aimed[columns] = True

    def grow(self, n: int) -> None:
        """Room for ``n`` more classes."""
        self.sketch = torch.cat([self.sketch, self.sketch.new_zeros(n, self.rows, self.dim)])
        self.aimed = torch.cat([self.aimed, self.aimed.new_zeros(n)])

    @torch.no_grad()
    def update(self, z: Tensor, columns: Tensor, stats: ClassStats) -> None:
        """Fold in features float64 [B, d]; call before ``stats`` is updated with them."""
        classes, parts = increments(z, columns, stats)
        for column, rows in zip(classes.tolist(), parts):
            self.sketch[column] += ((rows @ self.directions).T @ rows).float()

    @torch.no_grad()
    def merge(self, other: "ClassSketches", columns: Tensor, stats: ClassStats, other_stats: ClassStats) -> None:
        """Fold in another's, its class i into our class ``columns[i]``; call before ``stats`` is merged."""
        met = other_stats.count > 0
        classes = columns.to(met.device)[met]
        before, counts = stats.count[classes], other_stats.count[met]
        if not bool((stats.count > self.rows + 1).any()):
            self._look_as(other)
        if not self.looks_as(other):
            _log.warning("the sketches come from another base session: classes of many images are merged approximately")
        self.aimed[classes] |= other.aimed[met].to(self.aimed.device)
        shift = (before * counts / (before + counts)).sqrt()[:, None] * (other_stats.mean[met] - stats.mean[classes])
        self._add(classes, self._seen_here(other, met) + self._of_rows(shift))

    @torch.no_grad()
    def subtract(
        self, other: "ClassSketches", columns: Tensor, before: tuple[Tensor, Tensor], other_stats: ClassStats
    ) -> None:
        """Undo ``merge``, to rounding; ``before`` are our counts and means while they still held the other's."""
        count, mean = before
        met = other_stats.count > 0
        classes = columns.to(met.device)[met]
        taken, whole = other_stats.count[met].double(), count[classes].double()
        left = whole - taken
        factor = (taken * whole / left.clamp_min(1)).sqrt()[:, None]
        shift = factor * (other_stats.mean[met] - mean[classes])
        self._add(classes, -self._seen_here(other, met) - self._of_rows(shift))
        self.sketch[classes[left == 0]] = 0

    def remove(self, column: int) -> None:
        """Forget one class; with the last one, the vectors too."""
        self.sketch = torch.cat([self.sketch[:column], self.sketch[column + 1 :]])
        self.aimed = torch.cat([self.aimed[:column], self.aimed[column + 1 :]])
        if not len(self):
            self.shaped = self.shaped[:0]

    def factors(self, columns: Tensor) -> Tensor:
        """F, float64 [C, s, d], with F^T F the approximate scatter of these classes."""
        sketch = self.sketch[columns].double()
        seen = sketch @ self.directions
        values, vectors = torch.linalg.eigh((seen + seen.mT) / 2)
        least = _LEAST * values[:, -1:].clamp_min(0)
        scale = torch.where(values > least, values.clamp_min(1e-300).rsqrt(), 0)
        found: Tensor = (vectors * scale[:, None, :]).mT @ sketch
        return found

    def scatter(self, columns: Tensor) -> Tensor:
        """The approximate scatter of these classes, float64 [C, d, d]."""
        factors = self.factors(columns)
        return factors.mT @ factors

    def total(self) -> Tensor:
        """The approximate scatter of all classes together, float64 [d, d]."""
        whole = self.directions.new_zeros(self.dim, self.dim)
        for part in torch.arange(len(self), device=whole.device).split(_CLASSES_AT_ONCE):
            rows = self.factors(part).flatten(0, 1)
            whole += rows.T @ rows
        return whole

    def unseen(self, count: Tensor) -> Tensor:
        """h [K], the share of what the sketch does not show that the shared covariance has to stand for."""
        left: Tensor = (1 - self.rows / (count - 1).clamp_min(1).double()).clamp_min(0)
        return left

    def looks_as(self, other: "ClassSketches") -> bool:
        """True if both have the same vectors, so that their sketches add up exactly."""
        return torch.equal(self.directions, other.directions.to(self.directions))

    def _look_as(self, other: "ClassSketches") -> None:
        """Take the other's vectors; exact while no class has more images than a sketch knows all of."""
        if not self.looks_as(other):
            factors = self.factors(torch.arange(len(self), device=self.sketch.device))
            self.shaped = other.shaped.to(self.shaped)
            self.sketch = ((factors @ self.directions).mT @ factors).float()

    def _seen_here(self, other: "ClassSketches", met: Tensor) -> Tensor:
        """Sketches of another's classes by our vectors, float64 [C, s, d]."""
        if self.looks_as(other):
            return other.sketch[met].double()
        factors = other.factors(met.nonzero()[:, 0].to(other.sketch.device)).to(self.blind)
        return (factors @ self.directions).mT @ factors

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if self.rows:  # models from before there were such vectors have blind ones
            blind = {prefix + "shaped": self.shaped[:0], prefix + "aimed": torch.zeros_like(self.aimed)}
            state_dict = blind | state_dict
            saved = state_dict[prefix + "shaped"]
            if isinstance(saved, Tensor) and saved.shape in ((0, self.rows), (self.dim, self.rows)):
                self.shaped = self.shaped.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _of_rows(self, rows: Tensor) -> Tensor:
        """The sketches of one row each, [C, s, d]."""
        return (rows @ self.directions)[:, :, None] * rows[:, None, :]

    def _add(self, classes: Tensor, sketches: Tensor) -> None:
        self.sketch.index_add_(0, classes, sketches.float())


def filled(whole: Tensor, share: Tensor, own: Tensor, unseen: Tensor, directions: Tensor) -> Tensor:
    """Sigma_c [C, d, d] of the seen parts ``own`` [C, d, d], l_c ``share`` [C] and h_c ``unseen`` [C].

    ``whole`` [d, d] is T, ``directions`` [d, s] Omega.
    """
    side = whole @ directions
    rest = whole - side @ torch.linalg.solve(directions.T @ side, side.T)
    beside = ((1 - share) * unseen)[:, None, None]
    found: Tensor = share[:, None, None] * whole + beside * rest + own
    return found


class Inverse(NamedTuple):
    """diag(1/t) - R^T diag(e) R, the inverse of one class's P_c."""

    diagonal: Tensor  # float32 [d], 1/t
    rows: Tensor  # float32 [2 s, d], R
    energies: Tensor  # float32 [2 s], e

    def distances(self, away: Tensor) -> Tensor:
        """Squared distances [B] of offsets from the class's mean, float32 [B, d]."""
        whole: Tensor = away.square() @ self.diagonal - (away @ self.rows.T).square() @ self.energies
        return whole


class SketchedInverses:
    """The inverses of the classes' P_c, made when first asked for.

    ``share`` is l [K], ``weight`` (1 - l) / (n - 1) [K], ``unseen`` h [K], ``turn`` G [d, d], ``variance`` V [K, d],
    ``whole`` T [d, d].
    """

    def __init__(
        self,
        sketches: ClassSketches,
        share: Tensor,
        weight: Tensor,
        unseen: Tensor,
        *,
        turn: Tensor,
        variance: Tensor,
        whole: Tensor,
    ) -> None:
        self.sketches, self.share, self.weight = sketches, share, weight
        self.turn, self.variance, self.beside = turn, variance, (1 - share) * unseen  # b
        seen = turn @ (whole @ sketches.directions)  # what Omega is in the coordinates u
        self.basis = torch.linalg.qr(seen).Q.T  # Q^T, float64 [s, d]
        self._made: dict[int, Inverse] = {}

    def of(self, columns: list[int]) -> list[Inverse]:
        """Of these classes, in this order."""
        missing = [column for column in columns if column not in self._made]
        for part in torch.tensor(missing, dtype=torch.int64, device=self.share.device).split(_CLASSES_AT_ONCE):
            if len(part):
                self._made.update(zip(part.tolist(), self._invert(part)))
        return [self._made[column] for column in columns]

    def _invert(self, part: Tensor) -> list[Inverse]:
        turned = self.sketches.factors(part).float() @ self.turn.float().T  # float32: most of the work is here
        own = turned.double() * self.weight[part].sqrt()[:, None, None]  # A, [C, s, d]
        sides = torch.cat([own, self.beside[part].sqrt()[:, None, None] * self.basis], 1)  # [C, 2 s, d]
        sign = torch.ones(sides.shape[1], dtype=own.dtype, device=own.device)
        sign[own.shape[1] :] = -1  # what is taken off
        scale = (self.share + self.beside)[part, None] + self.variance[part]  # t, float64 [C, d]
        scaled = sides / scale[:, None, :]
        system = scaled @ sides.mT + torch.diag(sign)
        values, vectors = torch.linalg.eigh((system + system.mT) / 2)
        rows = (vectors.mT @ scaled).float()
        return [Inverse(*each) for each in zip((1 / scale).float(), rows, (1 / values).float())]
