"""How well each class's mean is known: its posterior, given how far apart the classes' means lie.

In coordinates u where the shared covariance is I, the origin lies amid the classes' means and the covariance between
them is diagonal (e), a class of n images with average x has

    V = 1 / (1 / e + n)      posterior variance of its mean, for each coordinate
    m = n V x                posterior mean: a few images are pulled towards the middle of the classes

and an image of that class has the predictive variance 1 + V around m. One image says little about where its class lies,
so V is large and the class is broad and cautious; with many images V goes to 1 / n and m to the average.

e is the covariance of the averages less what their own noise adds (the mean of 1 / n), shrunk towards its mean by
d / (k + d), k the number of classes it is estimated from: a few classes show how far apart classes lie, hardly in which
directions. Legend: K classes, d feature values.
"""

import torch
from torch import Tensor

_LEAST = 1e-6  # of e: classes whose means cannot be told apart
_UNKNOWN = 1.0  # e where fewer than two classes have been met


class ClassMeans:
    """The posterior of every class's mean.

    ``root`` is an A [d, d] with A^T A = (shared covariance)^-1. With ``rotate`` the coordinates are turned so that the
    covariance between classes is diagonal; without, they are A's own, and only its diagonal counts.
    """

    def __init__(self, count: Tensor, mean: Tensor, root: Tensor, *, rotate: bool = True) -> None:
        known = count >= 2 if int((count >= 2).sum()) >= 2 else count > 0
        self.centre = mean[known].mean(0) if bool(known.any()) else mean.new_zeros(mean.shape[1])
        turned = (mean - self.centre) @ root.T
        noise = (1 / count[known].clamp_min(1).double()).mean() if bool(known.any()) else count.new_ones(()).double()
        if rotate:
            axes, between = _spread(turned[known], noise)
            self.turn = axes.T @ root  # G, float64 [d, d]: u = G (z - centre)
            turned = turned @ axes
        else:
            self.turn = root
            between = _shrunk(turned[known].square().sum(0) / max(1, int(known.sum()) - 1), noise, int(known.sum()))
        self.between = between  # e, float64 [d]
        n = count[:, None].double()
        self.variance = 1 / (1 / between + n)  # V, float64 [K, d]
        self.mean = n * self.variance * turned  # m, float64 [K, d]

    @property
    def log_volume(self) -> Tensor:
        """L, by how much a class of uncertain mean is larger than a known one: sum of log(1 + V), float64 [K]."""
        return torch.log1p(self.variance).sum(1)

    @classmethod
    def certain(cls, mean: Tensor) -> "ClassMeans":
        """The averages as they are, where nobody knows how noisy they are."""
        made = cls.__new__(cls)
        made.centre = mean.mean(0)
        made.turn = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        made.mean, made.variance = mean - made.centre, torch.zeros_like(mean)
        made.between = torch.ones_like(made.centre)
        return made


def _spread(away: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Axes [d, d] in columns and e [d] of averages [k, d] around the origin; the cheaper way where k is below d."""
    k, d = away.shape
    scaled = away / max(1, k - 1) ** 0.5
    if k < d:
        _, sizes, rows = torch.linalg.svd(scaled, full_matrices=False)
        axes = torch.linalg.qr(rows.T, mode="complete").Q  # its first columns are those rows, up to their sign
        values = torch.cat([sizes.square(), sizes.new_zeros(d - len(sizes))])
    else:
        values, axes = torch.linalg.eigh(scaled.T @ scaled)
    return axes, _shrunk(values, noise, k)


def _shrunk(values: Tensor, noise: Tensor, k: int) -> Tensor:
    """e of the variances of k averages."""
    if k < 2:
        return torch.full_like(values, _UNKNOWN)
    weight, clean = k / (k + len(values)), values - noise
    level = clean.mean().clamp_min(0)
    return (weight * clean.clamp_min(0) + (1 - weight) * level).clamp_min(_LEAST)
