"""How well each class's mean is known: its posterior, given how far apart the classes' means lie.

In coordinates u where the shared covariance is I, the origin lies amid the classes' means and the covariance between
them is diagonal (e), a class of n images with average x has

    V = 1 / (1 / e + n / w)      posterior variance of its mean, for each coordinate
    m = n V x / w                posterior mean: a few images are pulled towards the middle of the classes (see below)

and an image of that class has the predictive variance 1 + V around m. One image says little about where its class lies,
so V is large and the class is broad and cautious; with many images V goes to w / n and m to the average. w is what
images really vary by: the shared covariance used for distances is rounder than the one measured as long as it rests on
few images, so w is far below 1 where classes are narrow, and 1 once it is known.

What is believed of an average must not rest on the noise of that average. Where there are more coordinates than
classes, e finds directions in which each class lies, noise included, and a class of ten images would be believed whole
in its own. The noise that averages have on average is taken out of e (below); a class of fewer images is noisier, and
that share of its part, g_c x_c x_c^T, is left out too when the class itself is judged. By Sherman and Morrison's
formula, as in leave-one-out regression, the posterior mean then is

    m_c = x_c - (1 - s) x_c / (1 - h_c),   s = n V / w,   h_c = sum of (1 - nu n_c) g_c x_c^2 / (e + w / n)

with 1 / nu the number of images that averages rest on, on average; but it is never less than the round part of e alone
says. V stays, as one direction does not change it. Among classes of as many images nothing is left out.

e comes from the averages x_c themselves. Those of few images are mostly noise, so each counts by what it says about the
mean of e, g_c = (e / (e + w / n_c))^2, relative to the best known; from their covariance A the noise that the averages
have on average is taken, and what is left is shrunk towards its mean, because k classes (k = (sum g)^2 / sum g^2) say
how far apart classes lie, but hardly in which directions. How much, follows from how far A can be off and how uneven
the rest E is (Ledoit and Wolf, "A well-conditioned estimator", 2004), both estimated without bias:

    shrinkage = off / (off + uneven),   off = (tr A^2 + (tr A)^2) / (k - 1),   uneven = tr E^2 - (tr E)^2 / d

Features whose classes differ in a few directions are known by these after a few classes; where they differ in all, the
prior stays round. So it does until two classes have two images: single images do not show what is noise. Nor do two or
three of each class: the caller says how ``vague`` the noise still is, which share of e stays round because of it.
Legend: K classes, d feature values.
"""

import torch
from torch import Tensor

_LEAST = 1e-6  # of e: classes whose means cannot be told apart
_LEAST_NOISE = 0.01  # w: below it rests on rounding
_NOTHING = 1e-9  # of the largest variance between classes: directions in which they do not differ
_ROUNDS = 2  # of weighing the averages; more change nothing that matters
_UNKNOWN = 1.0  # e where fewer than two classes have been met


class ClassMeans:
    """The posterior of every class's mean.

    ``root`` is an A [d, d] with A^T A = (shared covariance)^-1. With ``rotate`` the coordinates are turned so that the
    covariance between classes is diagonal; without, they are A's own, and only its diagonal counts. ``within`` [d, d]
    is the covariance of images around their class in A's coordinates (None: I), whose diagonal is w. ``vague`` is the
    share of e that stays round, 0 to 1.
    """

    def __init__(
        self,
        count: Tensor,
        mean: Tensor,
        root: Tensor,
        within: Tensor | None = None,
        *,
        vague: float = 0.0,
        rotate: bool = True,
    ) -> None:
        known = count >= 2 if int((count >= 2).sum()) >= 2 else count > 0
        within = torch.eye(len(root), dtype=root.dtype, device=root.device) if within is None else within
        averages = _Averages(count[known].double(), mean[known], root, within)
        self.centre, self.met = averages.centre, count > 0
        turned = (mean - self.centre) @ root.T
        self.turn = root  # G, float64 [d, d]: u = G (z - centre)
        if rotate:
            axes, values = _axes(averages.rows)
            self.turn, turned = axes.T @ root, turned @ axes
            noise = _along(axes, within, values > _NOTHING * values.max())
        else:
            values, noise = averages.rows.square().sum(0), within.diagonal()
        noise = noise.clamp_min(_LEAST_NOISE)  # w, float64 [d]
        self.between, plain, kept = averages.without_noise(values, noise, vague)  # e, float64 [d]
        n = count[:, None].double() / noise  # n / w
        self.variance = 1 / (1 / self.between + n)  # V, float64 [K, d]
        noisier = (1 - averages.noise * count[known]).clamp_min(0)  # of its noise, what others do not have
        own = torch.zeros(len(count)).to(mean).masked_scatter(known, kept * noisier * averages.scale)
        share = _by_others(n * self.variance, own[:, None] * turned.square() / self.between, rotate=rotate)
        self.mean = torch.maximum(share, n / (1 / plain + n)) * turned  # m, float64 [K, d]

    @property
    def log_volume(self) -> Tensor:
        """L, by how much a class of uncertain mean is larger than a known one: sum of log(1 + V), float64 [K]."""
        return torch.log1p(self.variance).sum(1)

    @property
    def squared_length(self) -> float:
        """Mean over the classes met of the squared length of their posterior means."""
        return float(self.mean[self.met].square().sum(1).mean())

    @classmethod
    def certain(cls, mean: Tensor) -> "ClassMeans":
        """The averages as they are, where nobody knows how noisy they are."""
        made = cls.__new__(cls)
        made.centre, made.met = mean.mean(0), torch.ones(len(mean), dtype=torch.bool, device=mean.device)
        made.turn = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        made.mean, made.variance = mean - made.centre, torch.zeros_like(mean)
        made.between = torch.ones_like(made.centre)
        return made


class _Averages:
    """Averages [k, d] of classes of n [k] images: weighted by what they say about e, around their ``centre`` [d].

    ``rows`` [k, d] are such that rows^T rows = A, where the shared covariance is I; ``within`` [d, d] is what images
    vary by there, and ``noise`` times that what the averages do.
    """

    def __init__(self, n: Tensor, averages: Tensor, root: Tensor, within: Tensor) -> None:
        self.dim, self.single, self.within = averages.shape[1], bool((n < 2).any()), within
        self.level = within.trace() / self.dim
        weight = torch.ones_like(n)
        for _ in range(_ROUNDS):
            self._gather(n, averages, root, weight)
            level = (self.rows.square().sum() / self.dim - self.noise * self.level).clamp_min(_LEAST)
            weight = (level / (level + self.level / n)).square()
        self._gather(n, averages, root, weight)

    def _gather(self, n: Tensor, averages: Tensor, root: Tensor, weight: Tensor) -> None:
        share = weight / weight.sum()  # [k], sums to 1
        self.centre = share @ averages
        self.free = float(1 / share.square().sum()) - 1 if len(n) else 0.0  # k - 1
        self.noise = (share / n).sum()
        self.scale = share * (self.free + 1) / self.free if self.free > 0 else torch.zeros_like(share)
        self.rows = self.scale[:, None].sqrt() * ((averages - self.centre) @ root.T)

    def without_noise(self, values: Tensor, noise: Tensor, vague: float) -> tuple[Tensor, Tensor, float]:
        """e of the variances ``values`` [d] of A, along its axes or any others; what is round of it; 1 - shrinkage."""
        if self.free <= 0:
            return torch.full_like(values, _UNKNOWN), torch.full_like(values[0], _UNKNOWN), 0.0
        kept, left = (1 - vague) * (1 - self._shrinkage()), values - self.noise * noise
        plain = ((1 - kept) * left.mean()).clamp_min(_LEAST)
        return (kept * left.clamp_min(0) + plain).clamp_min(_LEAST), plain, kept

    def _shrinkage(self) -> float:
        if self.free <= 1 or self.single:
            return 1.0
        products, noise = self.rows @ self.rows.T, float(self.noise)
        trace, square = float(products.trace()), float(products.square().sum())
        square = (square - trace**2 / self.free) * self.free**2 / ((self.free + 2) * (self.free - 1))  # without bias
        clean = max(trace - noise * float(self.within.trace()), 0.0)
        shared = float(((self.rows @ self.within) * self.rows).sum())  # tr(A W)
        uneven = square - 2 * noise * shared + noise**2 * float(self.within.square().sum()) - clean**2 / self.dim
        off = (max(square, trace**2 / self.dim) + trace**2) / self.free
        return off / (off + uneven) if uneven > 0 else 1.0


def above_mean(values: Tensor, met: Tensor) -> Tensor:
    """By how much each value [K] is above the mean of those of the classes ``met``, or 0.

    >>> above_mean(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([True, True, False]))
    tensor([0., 2., 6.])
    """
    return (values - values[met].mean()).clamp_min(0) if bool(met.any()) else values


def _by_others(share: Tensor, own: Tensor, *, rotate: bool) -> Tensor:
    """What is believed of each average, s [K, d] with e as it is, where e does not rest on that average's noise.

    ``own`` [K, d] is (1 - nu n_c) g_c x_c^2 / e. The leverage h is of the whole direction where e has been turned to it
    (``rotate``), else of each coordinate.

    >>> _by_others(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.0]]), rotate=False)
    tensor([[0.3333, 0.5000]])
    """
    leverage = share * own
    leverage = leverage.sum(1, keepdim=True) if rotate else leverage
    return 1 - (1 - share) / (1 - leverage).clamp_min(_LEAST)


def _along(axes: Tensor, within: Tensor, sure: Tensor) -> Tensor:
    """Variances [d] of ``within`` along these axes; over the axes that are not ``sure`` but arbitrary, their mean."""
    noise = ((within @ axes) * axes).sum(0)
    return torch.where(sure, noise, (noise * ~sure).sum() / (~sure).sum().clamp_min(1))


def _axes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Axes [d, d] in columns and variances [d] of rows^T rows of rows [k, d]; the cheaper way where k is below d."""
    k, d = rows.shape
    if k >= d:
        values, axes = torch.linalg.eigh(rows.T @ rows)
        return axes, values
    _, sizes, across = torch.linalg.svd(rows, full_matrices=False)
    axes = torch.linalg.qr(across.T, mode="complete").Q  # its first columns are those rows, up to their sign
    return axes, torch.cat([sizes.square(), sizes.new_zeros(d - len(sizes))])
