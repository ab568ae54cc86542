"""What a class of few images pays for its uncertain mean, so that the classes known before lose little to it.

    P_c = caution min(0.65 (1 + 0.75 r) (r (L_c - L) + (1 - r) X_c), 2.25 T) / 2^((n_c - 1) / 4)

L_c = sum of log(1 + V_c) is the logarithm of the volume that the class takes, L the least of all classes, X_c what L_c
exceeds the mean of all classes by, r what is unknown of the shared covariance, and T the temperature that turns
differences of scores into odds.

A class of one image is judged by about its density: it pays what its volume exceeds that of the best known class by.
With every four images more it pays half of that, because on base classes less was needed than the density says. Where
the shared covariance is known, which is after a base session, only what a class exceeds the mean of all by is counted:
of many new classes each pays less than one that is alone. The classes that trained the network lie further apart than
new ones do, and with all of L_c new ones would hardly ever be chosen. Where all classes have as many images, nobody
pays. L_c grows with the number of features and with how far apart the known classes lie, beyond what is needed, so what
is paid is bounded in odds: with the default caution of 2, 4.5 T are 90 to 1. The numbers were chosen on base classes
(benchmarks/first_pictures_of_base.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nocl.methods.rda.means import ClassMeans, above_mean


class Paying(NamedTuple):
    """What a class pays: ``volume`` of L_c, more ``while_unknown``, at most ``most`` T; all of it times caution.

    With every ``halved`` images half of it.
    """

    volume: float = 0.65
    while_unknown: float = 0.75
    halved: float = 4.0
    most: float = 2.25


def paid(means: ClassMeans, count: Tensor, unknown: Tensor, temperature: float, paying: Paying) -> Tensor:
    """P, float64 [K], for a caution of 1, of classes of ``count`` [K] images; ``unknown`` is r, a number."""
    volume, met = means.log_volume, means.met
    if not bool(met.any()):
        return torch.zeros_like(volume)
    density = (volume - volume[met].min()).clamp_min(0)
    counted = unknown * density + (1 - unknown) * above_mean(volume, met)
    owed = paying.volume * (1 + paying.while_unknown * unknown) * counted
    return owed.clamp_max(paying.most * temperature) * torch.exp2(-(count - 1).clamp_min(0).double() / paying.halved)
