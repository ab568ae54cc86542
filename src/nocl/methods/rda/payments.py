"""What a class of few images pays for its uncertain mean, so that the classes known before lose little to it.

    P_c = r (L_c - L) + (1 - r) X_c + caution T r^(1/4) F_c

L_c = sum of log(1 + V_c) is the logarithm of the volume that the class takes, L the least of all classes, X_c what L_c
exceeds the mean of all classes by, r what is unknown of the shared covariance, and T the temperature that turns
differences of scores into odds. F_c is what f_c = 1 / (1 + (n_c - 1) / 5) exceeds its mean over all classes by.

The first part is the density: a class pays what its volume exceeds that of the best known class by. Where the shared
covariance is known, which is after a base session, only what it exceeds the mean of all by is counted: of many new
classes each pays less than one that is alone. The classes that trained the network lie further apart than new ones do,
and with all of L_c new ones would hardly ever be chosen. The second part is for what the density does not know: where
the shared covariance rests on few images (r near 1), the volume is no better known, and beside many classes that are
known the first picture of another one must make it e^caution times as likely as the best of them; six pictures, the
root of that. Where all classes have as many images, nobody pays. The numbers were chosen on base classes
(benchmarks/first_pictures_of_base.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nocl.methods.rda.means import ClassMeans, above_mean


class Doubt(NamedTuple):
    """T r^``power`` F_c, where ``halved`` images beyond the first halve f_c."""

    power: float = 0.25
    halved: float = 5.0

    def of(self, count: Tensor, unknown: Tensor, temperature: float) -> Tensor:
        """What classes of ``count`` [K] images pay of it for a caution of 1, float64 [K]."""
        few = self.halved / (self.halved + (count - 1).clamp_min(0).double())
        return temperature * unknown**self.power * above_mean(few, count > 0) * (count > 0)


def density(means: ClassMeans, unknown: Tensor) -> Tensor:
    """What classes pay for the volume they take, float64 [K]; ``unknown`` is r, a number."""
    volume, met = means.log_volume, means.met
    if not bool(met.any()):
        return torch.zeros_like(volume)
    beside_best = (volume - volume[met].min()).clamp_min(0)
    return unknown * beside_best + (1 - unknown) * above_mean(volume, met)
