"""A river classifier: one dict of numbers at a time, for river's pipelines and its evaluation loop.

    model = preprocessing.StandardScaler() | Classifier("slda")
    evaluate.progressive_val_score(dataset, model, metrics.Accuracy())

It is meant for embeddings, whose values all come every time. Needs the extra ``river``. For arrays of many rows use
``nocl.sklearn``, which is faster.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

try:
    from river import base
except ImportError as error:
    raise ImportError("nocl.river needs the extra: pip install 'nocl[river]'") from error

from nocl.app.vector_learner import VectorLearner, as_float32, check_own_parameters, probabilities
from nocl.plumbing.types import JSON


class Classifier(base.Classifier):  # type: ignore[misc]
    """Any nocl method on frozen features, on dicts of numbers.

    Parameters
    ----------
    method
        ``rda``, ``slda``, ``ncm``, ``fecam``, ``ranpac``, ``acil``, or a method of your own as ``module:Class``.
        ``dsr`` cannot start from one sample.
    params
        The method's own parameters. ``power`` is 1 unless set: the usual 0.5 is for values that are never negative.
    keys
        What to do when a dict has other keys than the first one: ``same`` refuses it; ``fill`` takes 0 for a missing
        key and leaves a new one out.
    temperature
        Divides the scores before the softmax of ``predict_proba_one``, above 0; None for the method's usual value.
    device
        Where to compute: ``cpu``, ``cuda``, ``mps``.
    seed
        Random seed of methods that draw.
    """

    def __init__(
        self,
        method: str = "rda",
        params: Mapping[str, JSON] | None = None,
        keys: Literal["same", "fill"] = "same",
        temperature: float | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        if keys not in ("same", "fill"):
            raise ValueError(f"keys must be same or fill, not {keys!r}")
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        check_own_parameters(method, params or {})
        self.method, self.params, self.keys, self.temperature = method, params, keys, temperature
        self.device, self.seed = device, seed
        self._names: tuple[Hashable, ...] = ()
        self._vectors: VectorLearner | None = None

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Hashable, Any], y: Hashable) -> None:
        """Learn one sample; its label may be new."""
        if self._vectors is not None:
            self._vectors.learn(self._row(x, self._names), [y])
            return
        if not x:
            raise ValueError("the first sample has no features; a vector needs one or more")
        names = tuple(sorted(x, key=lambda name: (type(name).__name__, name)))
        row = self._row(x, names)
        vectors = VectorLearner(self.method, len(names), self.params, seed=self.seed, device=self.device)
        vectors.learn(row, [y])
        self._names, self._vectors = names, vectors

    def predict_proba_one(self, x: dict[Hashable, Any], **kwargs: Any) -> dict[Hashable, float]:
        """The probability of each label met so far; none before the first."""
        if self._vectors is None:
            return {}
        scores = self._vectors.scores(self._row(x, self._names))
        shares = probabilities(scores, self.temperature or self._vectors.temperature)[0]
        return dict(zip(self._vectors.labels, shares.tolist()))

    def predict_one(self, x: dict[Hashable, Any], **kwargs: Any) -> Hashable | None:
        """The label with the best score; None before the first sample."""
        if self._vectors is None:
            return None
        return self._vectors.labels[int(self._vectors.scores(self._row(x, self._names)).argmax())]

    def end_session(self) -> None:
        """Tell the method that a session has ended; rda with low rank uses it."""
        if self._vectors is not None:
            self._vectors.end_session()

    def _row(self, x: Mapping[Hashable, Any], names: tuple[Hashable, ...]) -> NDArray[np.float32]:
        if self.keys == "same" and x.keys() != set(names):
            missing, new = set(names) - x.keys(), x.keys() - set(names)
            which = f"{len(missing)} missing ({_some(missing)}), {len(new)} new ({_some(new)})"
            raise ValueError(f"the keys are not those of the first sample: {which}; use keys='fill' to allow it")
        try:
            row = np.array([[float(x.get(name, 0.0)) for name in names]])
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"features must be numbers: {error}") from None
        if not np.isfinite(row).all():
            name = names[int((~np.isfinite(row[0])).nonzero()[0][0])]
            raise ValueError(f"feature {name!r} is {x.get(name)}, not a finite number; remove or correct it")
        return as_float32(row, "feature", names)


def _some(names: set[Hashable]) -> str:
    return ", ".join(sorted(map(repr, names))[:3]) or "-"
