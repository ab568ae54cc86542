"""A scikit-learn classifier that learns new classes at any time, on vectors, with labels of any kind.

    model = StreamingClassifier("rda").fit(X, y)
    model.partial_fit(X_new, y_new)       # new classes at any time; nothing of X is kept
    model.predict(X_test)

It works in pipelines, searches and cross-validation. Needs the extra ``sklearn``. Its own file (``save``, ``load``) is
a safetensors file, which is safe to open; a pickle is safe only from people you trust.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError("nocl.sklearn needs the extra: pip install 'nocl[sklearn]'") from error

from nocl.app.vector_learner import VectorLearner, as_float32, check_labels, check_own_parameters, probabilities
from nocl.methods._saving import check_trust
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.parameters import plain
from nocl.plumbing.types import JSON

OF_METHOD = "method__"


class StreamingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Any nocl method on frozen features, on vectors [n, d].

    Parameters
    ----------
    method
        ``rda``, ``slda``, ``ncm``, ``fecam``, ``ranpac``, ``acil``, ``dsr``, or your own as ``module:Class``.
    params
        The method's own parameters, such as ``{"prior": 1.0}``; also as ``method__prior`` in ``set_params`` and
        searches. ``power`` is 1 unless set: the methods' usual 0.5 is for features that are never negative.
    temperature
        Divides the scores before the softmax of ``predict_proba``, above 0; None for the method's usual value. No value
        is fitted to your data: wrap the classifier in ``CalibratedClassifierCV`` where probabilities matter.
    device
        Where to compute: ``cpu``, ``cuda``, ``mps``.
    random_state
        Whole number: the random seed of methods that draw (``ranpac``, ``acil``, ``dsr``).

    Attributes
    ----------
    classes_
        The labels met, or announced by ``partial_fit(classes=...)``, sorted.
    n_features_in_
        The length of the vectors.
    """

    def __init__(
        self,
        method: str = "rda",
        *,
        params: Mapping[str, JSON] | None = None,
        temperature: float | None = None,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.params = params
        self.temperature = temperature
        self.device = device
        self.random_state = random_state

    # --- parameters -------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments; with ``deep`` also the method's parameters that are set, as ``method__NAME``."""
        found: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.params, Mapping):
            found |= {OF_METHOD + name: value for name, value in self.params.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Change arguments, ``method__NAME`` for a parameter of the method."""
        own = {name.removeprefix(OF_METHOD): value for name, value in params.items() if name.startswith(OF_METHOD)}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith(OF_METHOD)})
        if own:
            check_own_parameters(self.method, own)
            self.params = {**(self.params or {}), **own}
        return self

    # --- learning ---------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Start again. Methods that choose or train something on their first classes (slda, ranpac, dsr) do it here."""
        X, y = self._checked(X, y, reset=True)
        vectors = self._build()
        vectors.fit(X, y.tolist())
        self._keep(vectors, np.unique(y))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from vectors once: new classes are added, known ones improved.

        ``classes`` are labels to announce. They are in ``classes_`` from then on, with probability 0 until they are
        learned; other classes may be learned all the same.
        """
        first = not hasattr(self, "vectors_")
        X, y = self._checked(X, y, reset=first)
        labels = np.unique(y)
        if classes is not None:
            announced = np.unique(column_or_1d(classes))
            check_labels(announced.tolist())
            labels = _joined(labels, announced)
        labels = labels if first else _joined(self.classes_, labels)
        vectors = self._build() if first else self.vectors_
        vectors.learn(X, y.tolist())
        vectors.announce(labels.tolist())
        self._keep(vectors, labels)
        return self

    def end_session(self) -> Self:
        """Tell the method that a session has ended; dsr, and rda with low rank, use it."""
        check_is_fitted(self)
        self.vectors_.end_session()
        return self

    # --- answers ----------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """The method's scores [n, K]; [n] where there are two classes, above 0 for the second."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The softmax of the scores [n, K] over the temperature."""
        scores = self._scores(X)
        temperature = self.vectors_.temperature if self.temperature is None else self.temperature
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        return probabilities(scores, temperature)

    def predict(self, X: Any) -> NDArray[Any]:
        """The label with the best score [n]."""
        scores = self._scores(X)
        found: NDArray[Any] = self.classes_[scores.argmax(1)]
        return found

    # --- the file ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all. Labels must be text, numbers or truth values."""
        check_is_fitted(self)
        kept = {name: value for name, value in self.get_params(deep=False).items() if name != "device"}
        names = getattr(self, "feature_names_in_", None)
        about = {"estimator": plain(kept), "label_type": self.classes_.dtype.str, "announced": self.classes_.tolist()}
        about["columns"] = None if names is None else [str(name) for name in names]
        self.vectors_.save(Path(path), about)

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False, device: str = "cpu") -> Self:
        """Load a saved classifier; it predicts and continues learning as before.

        ``trust`` allows a method of your own, whose code is then imported and run.
        """
        vectors, about = VectorLearner.load(Path(path), trust=trust, device=device)
        arguments, label_type = about.get("estimator"), about.get("label_type")
        if not isinstance(arguments, dict) or not isinstance(label_type, str):
            raise DamagedFileError(f"{path} is not a StreamingClassifier")
        if not re.fullmatch(r"[<>|=]?([biuf]\d|[US]\d{1,5}|O)", label_type):
            raise DamagedFileError(f"{path}: labels of type {label_type[:20]!r} are neither text nor numbers")
        params = arguments.get("params") or {}
        check_trust(Path(path), str(arguments.get("method")), params if isinstance(params, dict) else {}, trust)
        try:
            made = cls(**arguments, device=device)  # type: ignore[arg-type]
            made._keep(vectors, np.array(about["announced"], dtype=np.dtype(label_type)))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{path}: the header does not describe a StreamingClassifier: {error}") from error
        made.n_features_in_ = vectors.learner.feature_dim
        if about.get("columns") is not None:
            made.feature_names_in_ = np.array(about["columns"], dtype=object)
        return made

    # --- inside -----------------------------------------------------------------------------------------------

    def _build(self) -> VectorLearner:
        return VectorLearner(
            self.method, self.n_features_in_, self.params, seed=int(self.random_state), device=self.device
        )

    def _keep(self, vectors: VectorLearner, labels: NDArray[Any]) -> None:
        self.vectors_, self.classes_ = vectors, labels
        place = {label: i for i, label in enumerate(vectors.labels)}
        self._columns = np.array([place[label] for label in labels.tolist()], dtype=np.int64)

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[np.float32], NDArray[Any]]:
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64)
        with warnings.catch_warnings():  # a batch of a stream may well hold many classes of one sample each
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            check_classification_targets(y)
        return self._float32(X), column_or_1d(y, warn=True)

    def _scores(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self.vectors_.scores(self._float32(X))[:, self._columns]

    def _float32(self, X: NDArray[np.float64]) -> NDArray[np.float32]:
        names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
        return as_float32(X, "column", names.tolist())


def _joined(known: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Both sets of labels, sorted; refused if one type cannot hold them all as they are."""
    if (known.dtype.kind in "OUS") != (labels.dtype.kind in "OUS"):
        raise ValueError(
            f"labels were {known.dtype} so far and are {labels.dtype} now; use one kind, such as y.astype(str)"
        )
    joint = np.result_type(known, labels)
    if joint.kind == "f" and known.dtype.kind in "iu" and labels.dtype.kind in "iu":  # int64 and uint64
        largest = max(int(known.max(initial=0)), int(labels.max(initial=0)))
        joint = np.dtype(np.int64 if largest < 2**63 else np.uint64)
    for array in (known, labels) if known.dtype != labels.dtype else ():
        for label, converted in zip(array.tolist(), array.astype(joint).tolist()):
            if label != converted:
                raise ValueError(
                    f"label {label!r} would become {converted!r} among labels of {known.dtype} and {labels.dtype}; "
                    "use one type, such as y.astype(str)"
                )
    joined: NDArray[Any] = np.union1d(known.astype(joint), labels.astype(joint))
    return joined
