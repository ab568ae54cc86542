"""What a class of few images pays for its uncertain mean, so that the classes known before lose little to it.

    P_c = caution (r (L_c - L) + (1 - r) X_c + 5 / (K - 1) X_c + T r^(1/4) F_c)

L_c = sum of log(1 + V_c) is the logarithm of the volume that the class takes, L the least of all classes, X_c what L_c
exceeds the mean of all classes by, r what is unknown of the shared covariance, K the number of classes, and T the
temperature that turns differences of scores into odds. F_c is what f_c = 1 / (1 + ((n_c - 1) / 3)^2) exceeds its mean
over all classes by.

First comes the density: a class pays what its volume exceeds that of the best known class by. Where the shared
covariance is known, which is after a base session, only what it exceeds the mean of all by is counted: of many new
classes each pays less than one that is alone. The classes that trained the network lie further apart than new ones do,
and with all of L_c new ones would hardly ever be chosen. Then comes what the density does not know. How far apart
classes lie is known from the K - 1 others, and badly from few, so beside few a class pays more for its volume. And
where the shared covariance rests on few images (r near 1), volumes are no better known: beside many classes that are
known the first picture of another one must make it e^caution times as likely as the best of them; the fourth, the root
of that. Where all classes have as many images, nobody pays. The numbers were chosen on base classes
(benchmarks/first_pictures_of_base.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nocl.methods.rda.means import ClassMeans, above_mean


class Paying(NamedTuple):
    """``beside_few`` / (K - 1) X_c; T r^``power`` F_c; f_c is a half after ``halved`` more images than one."""

    beside_few: float = 5.0
    power: float = 0.25
    halved: float = 3.0


def paid(means: ClassMeans, count: Tensor, unknown: Tensor, temperature: float, paying: Paying) -> Tensor:
    """P, float64 [K], of classes of ``count`` [K] images for a caution of 1; ``unknown`` is r, a number."""
    volume, met = means.log_volume, count > 0
    if not bool(met.any()):
        return torch.zeros_like(volume)
    beside_best, beside_mean = (volume - volume[met].min()).clamp_min(0), above_mean(volume, met)
    beside_few = paying.beside_few / max(int(met.sum()) - 1, 1)
    few = 1 / (1 + ((count - 1).clamp_min(0).double() / paying.halved).square())
    doubt = beside_few * beside_mean + met * temperature * unknown**paying.power * above_mean(few, met)
    return unknown * beside_best + (1 - unknown) * beside_mean + doubt
