"""Scores to probabilities, and when to answer "none of these". All of it is chosen on held-out base images.

The scale of scores depends on the method. One temperature T, fitted by maximum likelihood on held-out images, makes
``softmax(scores / T)`` a calibrated probability. To refuse images of unknown classes, a confidence is compared with
those of held-out images of known classes: the largest score or the largest probability, whichever separates left-out
base classes better; the largest score where there are fewer than four classes to leave some out of.

Held-out images know nothing of classes that came later, so a model with such classes is not called calibrated. What
they showed is still the best guess: how many times the method's own temperature was the right one (:meth:`carried`).
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

Confidence = Literal["score", "probability"]
AT_MOST = 4.0  # times the method's own temperature: held-out images that are all answered right would fit one near 0
LEVELS = 100  # the confidences of held-out images are kept as this many steps between least and greatest


@dataclass(frozen=True)
class Calibration:
    """A temperature and the confidences that images of known classes reach, from least to greatest."""

    temperature: float
    images: int = 0  # how many held-out base images decided it; 0: nothing was held out
    confidence: Confidence = "score"
    separation: float | None = None  # how well that confidence told left-out base classes apart (AUC)
    reached: tuple[float, ...] = ()
    own: float | None = None  # the method's own temperature at that time

    def carried(self, own: float) -> float:
        """The temperature once classes have been added and the method's own is ``own``.

        >>> Calibration(15.0, images=100, own=10.0).carried(8.0), Calibration(15.0).carried(8.0)
        (12.0, 8.0)
        """
        return own if self.own is None else own * min(max(self.temperature / self.own, 1 / AT_MOST), AT_MOST)

    def threshold(self, refused: float) -> float:
        """The confidence below which that share of images of known classes falls."""
        if not 0 <= refused < 1:
            raise ValueError(f"reject must be a share of known images from 0 to below 1 (True is 0.05), not {refused}")
        if not self.reached:
            raise ValueError("reject needs a model fitted with held-out images: call fit with some per class")
        return float(torch.quantile(torch.tensor(self.reached, dtype=torch.float64), refused, interpolation="lower"))

    def probabilities(self, scores: Tensor) -> Tensor:
        """float64 [B, K], rows sum to 1."""
        return torch.softmax(scores.double() / self.temperature, dim=1)

    def confidences(self, scores: Tensor) -> Tensor:
        """float64 [B], of the kind this calibration compares."""
        return confidences(scores, self.confidence, self.temperature)

    def to_json(self) -> dict[str, JSON]:
        return {**asdict(self), "reached": list(self.reached)}

    @classmethod
    def from_json(cls, value: JSON) -> "Calibration":
        """Read what ``to_json`` writes; ValueError for anything else."""
        try:
            assert isinstance(value, dict)
            made = cls(
                float(value["temperature"]),  # type: ignore[arg-type]
                int(value["images"]),  # type: ignore[arg-type]
                value["confidence"],  # type: ignore[arg-type]
                None if value["separation"] is None else float(value["separation"]),  # type: ignore[arg-type]
                tuple(float(level) for level in value["reached"]),  # type: ignore[arg-type, union-attr]
                None if value.get("own") is None else float(value["own"]),  # type: ignore[arg-type]
            )
        except (AssertionError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a calibration: {error}") from error
        for temperature in (made.temperature, 1.0 if made.own is None else made.own):
            if not (temperature > 0 and math.isfinite(temperature)):
                raise ValueError(f"temperature must be above 0, not {temperature}")
        if made.confidence not in ("score", "probability"):
            raise ValueError(f"confidence must be score or probability, not {made.confidence!r}")
        if not all(math.isfinite(level) for level in made.reached) or len(made.reached) > LEVELS + 1:
            raise ValueError("the confidences reached must be finite and at most 101")
        return made


def calibrate(scores: Tensor, columns: Tensor, own: float | None = None) -> Calibration:
    """From scores [N, K] of held-out base images and their true columns [N]; ``own`` is the method's temperature."""
    scores = scores.double().cpu()
    temperature = fit_temperature(scores, columns)
    separations = {kind: _separation(scores, columns, kind, temperature) for kind in ("score", "probability")}
    kind: Confidence = "probability" if separations["probability"] > separations["score"] else "score"
    reached = confidences(scores, kind, temperature)
    levels = torch.quantile(reached, torch.linspace(0, 1, LEVELS + 1, dtype=torch.float64))
    separation = separations[kind]
    return Calibration(
        temperature,
        len(scores),
        kind,
        None if math.isnan(separation) else separation,
        tuple(levels.tolist()),
        own,
    )


def fit_temperature(scores: Tensor, columns: Tensor) -> float:
    """The T with the highest likelihood of held-out labels, searched over log T (the loss is convex in 1/T).

    >>> right = torch.tensor([[2.0, 0.0]] * 3 + [[0.0, 2.0]])  # three in four right: p = 0.75, so 2 / T = log 3
    >>> round(2 / fit_temperature(right, torch.zeros(4, dtype=torch.int64)), 3) == round(math.log(3), 3)
    True
    """
    scores = scores.double()
    spread = float((scores.amax(1) - scores.clamp_min(-1e30).mean(1)).abs().mean())
    scale = spread if spread > 0 and math.isfinite(spread) else 1.0

    def loss(log_t: float) -> float:
        logits = torch.log_softmax(scores / (scale * math.exp(log_t)), dim=1)
        return float(-logits.gather(1, columns[:, None]).mean())

    from scipy.optimize import minimize_scalar  # slow to import, and few commands fit anything

    found = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(1e3)), method="bounded", options={"xatol": 1e-7})
    return scale * math.exp(float(found.x))


def confidences(scores: Tensor, kind: str, temperature: float) -> Tensor:
    """The confidence of each row [B]: its largest score, or its largest probability."""
    scores = scores.double()
    return scores.amax(1) if kind == "score" else torch.softmax(scores / temperature, dim=1).amax(1)


def auc(known: Tensor, unknown: Tensor) -> float:
    """The probability that a known image has a higher confidence than an unknown one; ties count half.

    >>> auc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.875
    """
    if not len(known) or not len(unknown):
        return math.nan
    values = torch.cat([known, unknown]).double()
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2  # the mean rank of each group of equal values
    n = len(known)
    return float((ranks[inverse[:n]].sum() - n * (n + 1) / 2) / (n * len(unknown)))


def _separation(scores: Tensor, columns: Tensor, kind: str, temperature: float) -> float:
    """AUC if every second base class is treated as unknown: its column is removed, its images should be refused."""
    if scores.shape[1] < 4:
        return math.nan
    hidden = torch.arange(scores.shape[1]) % 2 == 1
    sure = confidences(scores[:, ~hidden], kind, temperature)
    return auc(sure[~hidden[columns]], sure[hidden[columns]])


def hold_out(labels: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions to learn from and positions held out: that share of each class, never its last image."""
    held: list[int] = []
    for label in dict.fromkeys(labels.tolist()):
        rows = np.flatnonzero(labels == label)
        count = min(round(share * len(rows)) or int(share > 0), len(rows) - 1)
        order = torch.randperm(len(rows), generator=generator(seed, "holdout", label)).numpy()
        held += rows[order[:count]].tolist()
    is_held = np.isin(np.arange(len(labels)), held)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)
