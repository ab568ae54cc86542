"""The temperature that turns rda's scores into probabilities, from what a model knows of itself.

    T = 3.375 exp(1.611 r) M^0.2787

r is what is unknown of the shared covariance, M the mean squared length of the classes' posterior means, which is how
far apart the classes lie. A line through 412 models (benchmarks/temperature.py).
"""

import math

SCALE, BY_UNKNOWN, BY_LENGTH = 3.375, 1.611, 0.2787
_LEAST = 1e-6  # where classes cannot be told apart


def temperature(unknown: float, squared_length: float) -> float:
    """T, of r and M.

    >>> round(temperature(0.0, 1.0), 3)
    3.375
    """
    return max(_LEAST, SCALE * math.exp(BY_UNKNOWN * unknown) * math.pow(squared_length, BY_LENGTH))
