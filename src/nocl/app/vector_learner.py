"""A method on vectors with labels of any kind: what ``nocl.sklearn`` and ``nocl.river`` share.

The learner has the backbone ``features:D``, so a vector is its own feature. Learners use whole numbers as labels; label
i of the learner is ``labels[i]``, the i-th label seen.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.learner import FrozenLearner, Learner, UnsupportedError
from nocl.methods import METHODS, name_of, remake
from nocl.methods._saving import load_with_extra, save
from nocl.nets.stored import PREFIX
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.parameters import check_values, parameters_of, plain
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON, Batch

LARGEST = 1e15  # of a value, so that sums of squares stay far within float32
_ROWS_AT_ONCE = 512
_ROWS_TOGETHER = 16  # products of fewer rows are computed with different rounding
_SET_HERE = (
    "backbone",
    "weights",
    "image_size",
    "seed",
    "stages",
)  # set by the estimator, or without meaning for vectors


class VectorLearner:
    """A learner on vectors of ``dim`` values. ``params`` are the method's own; ``power`` is 1 unless given.

    The methods' usual power of 0.5 is made for features that are never negative, which embeddings in general are not.
    """

    def __init__(
        self, method: str, dim: int, params: Mapping[str, JSON] | None = None, *, seed: int = 0, device: str = "cpu"
    ) -> None:
        cls = method_for_vectors(method)
        chosen = plain(params or {})
        check_own_parameters(method, chosen)
        if "power" in parameters_of(cls):
            chosen.setdefault("power", 1.0)
        self.learner: FrozenLearner = cls(**chosen, backbone=f"{PREFIX}{dim}", seed=plain(seed)).to(device)
        self.temperature = cls.softmax_scale
        self.labels: list[Hashable] = []
        self._number: dict[Hashable, int] = {}

    def fit(self, x: NDArray[np.float32], labels: Sequence[Hashable]) -> Self:
        """The base session: methods that choose or train something (slda, ranpac, dsr) do it here."""
        if self.learner.needs_heads() and len(x) < 2:
            name = type(self.learner).__name__
            raise ValueError(f"{name} first trains a projection and needs more than one sample for it, not {len(x)}")
        self.learner.fit_base(list(self._batches(x, labels)))
        return self

    def learn(self, x: NDArray[np.float32], labels: Sequence[Hashable]) -> None:
        """Learn from vectors [B, D] once: new labels are added, known ones improved."""
        if self.learner.needs_heads() and not int(self.learner.n_base_):
            self.fit(x, labels)
            return
        for z, y in self._batches(x, labels):
            self.learner.observe(z, y)

    def end_session(self) -> None:
        """Call the method's ``end_session``; dsr, and rda with low rank, use it."""
        self.learner.end_session()

    @torch.no_grad()
    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """[B, K]; column i is ``labels[i]``. Minus infinity for a label that was announced and never met."""
        self._check_sign(x)
        padded = torch.from_numpy(np.pad(x, ((0, -len(x) % _ROWS_TOGETHER), (0, 0))))
        parts = [self.learner.decision_function(part).cpu() for part in padded.split(_ROWS_AT_ONCE)]
        found = torch.cat(parts)[: len(x)] if parts else torch.zeros(0, len(self.learner.classes_))
        whole = torch.full((len(found), len(self.labels)), float("-inf"))
        whole[:, self.learner.classes_.cpu()] = found.float()
        scores: NDArray[np.float32] = whole.numpy()
        return scores

    def announce(self, labels: Iterable[Hashable]) -> None:
        """Add labels before their first sample."""
        for label in labels:
            if label not in self._number:
                self._number[label] = len(self.labels)
                self.labels.append(label)

    def save(self, path: Path, extra: Mapping[str, JSON]) -> None:
        """Write one safetensors file; labels must be text, numbers or truth values."""
        for label in self.labels:
            if not isinstance(label, str | int | float | bool):
                raise TypeError(f"label {label!r} is a {type(label).__name__}; a file keeps text and numbers only")
        labels = cast("list[JSON]", self.labels)
        save(self.learner, path, {**extra, "labels": labels, "temperature": self.temperature})

    @classmethod
    def load(cls, path: Path, *, trust: bool = False, device: str = "cpu") -> tuple[Self, dict[str, JSON]]:
        """Load what ``save`` wrote, with its ``extra``. ``trust`` allows a method of your own: its code is run."""
        learner, extra = load_with_extra(path, trust=trust, device=device)
        labels, temperature = extra.get("labels"), extra.get("temperature")
        if not isinstance(learner, FrozenLearner) or not isinstance(labels, list) or not isinstance(temperature, float):
            raise DamagedFileError(f"{path} is not a classifier of vectors")
        made = cls.__new__(cls)
        made._take(learner, extra)
        return made, extra

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: plain arrays, equal bytes for equal states."""
        learner = self.learner
        arrays = {name: tensor.cpu().numpy() for name, tensor in learner.state_dict().items()}
        about = {"method": name_of(learner), "params": learner.get_params(), "device": learner.device.type}
        return {"labels": self.labels, "temperature": self.temperature, "arrays": arrays, **about}

    def __setstate__(self, state: dict[str, Any]) -> None:
        learner = remake(state["method"], state["params"])
        learner.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state["arrays"].items()})
        self._take(learner.eval().to(state["device"]), state)

    def _take(self, learner: Learner, about: Mapping[str, Any]) -> None:
        assert isinstance(learner, FrozenLearner)
        self.learner, self.temperature, self.labels, self._number = learner, about["temperature"], [], {}
        self.announce(about["labels"])

    def _batches(self, x: NDArray[np.float32], labels: Sequence[Hashable]) -> Iterable[Batch]:
        """Check all vectors and labels before the first batch, so that bad ones do not change the learner."""
        self._check_sign(x)
        check_labels(labels)
        z = self.learner.prepare(torch.from_numpy(x))
        self.announce(labels)
        y = torch.tensor([self._number[label] for label in labels], dtype=torch.int64)
        return [Batch(*pair) for pair in zip(z.cpu().split(_ROWS_AT_ONCE), y.split(_ROWS_AT_ONCE))]

    def _check_sign(self, x: NDArray[np.float32]) -> None:
        power = getattr(self.learner, "power", 1.0)
        if power != 1 and x.size and x.min() < 0:
            raise ValueError(
                f"the vectors have negative values ({x.min():.3g}), and power={power} is for values that are never "
                "negative: use power=1, the default for vectors"
            )


def method_for_vectors(method: str) -> type[FrozenLearner]:
    """The class of a method that can learn from vectors; an error with the reason if it cannot."""
    cls = by_name(method, METHODS, "method")
    if not (isinstance(cls, type) and issubclass(cls, Learner)):
        raise TypeError(f"method {method!r} is not a subclass of nocl.Learner")
    if not issubclass(cls, FrozenLearner):
        raise UnsupportedError(f"{method} trains its network on images and cannot learn from vectors; try rda")
    if ":" in cls.base_recipe.objective:
        raise UnsupportedError(
            f"{method} only differs from ncm in how it trains a network on images: on vectors use ncm"
        )
    return cls


def check_own_parameters(method: str, params: Mapping[str, JSON]) -> None:
    """Refuse parameters that the method does not have or that have no meaning for vectors."""
    check_values(method_for_vectors(method), plain(params))
    wrong = sorted(set(params) & set(_SET_HERE))
    if wrong:
        raise ValueError(f"parameter {wrong[0]!r} of {method} is for images, or set by the classifier itself")


def check_labels(labels: Iterable[Hashable]) -> None:
    """Refuse NaN, which equals no label, itself included."""
    for label in labels:
        if label != label:
            raise ValueError(f"label {label} equals no other, so each would be a new class: leave the sample out")


def as_float32(x: NDArray[np.float64], word: str, names: Sequence[Hashable]) -> NDArray[np.float32]:
    """Finite vectors [B, D] as a learner takes them; a value beyond the limit is named, by ``word`` and its name."""
    beyond = np.abs(x) > LARGEST
    if beyond.any():
        row, column = np.argwhere(beyond)[0].tolist()
        raise ValueError(
            f"{word} {names[column]!r} is {x[row, column]:.3g}, beyond the limit of {LARGEST:.0e} "
            "(sums of squares would be beyond float32): scale the values, or leave the sample out"
        )
    values: NDArray[np.float32] = np.array(x, dtype=np.float32, order="C")
    return values


def probabilities(scores: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Softmax of scores [B, K] over the temperature."""
    scaled = scores.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(1, keepdims=True))
    shares: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return shares
