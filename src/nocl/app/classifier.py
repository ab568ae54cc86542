"""A classifier for applications: your own images and class names, scikit-learn habits, one file to keep it in.

    model = Classifier()                        # a network that has seen ImageNet, nothing to train
    model.partial_fit(["a.jpg", "b.jpg"], "mug")
    model.partial_fit(more, ["mug", "spoon"])   # a class that reappears is improved
    model.predict("photo.jpg")
    model.save("kitchen.nocl")

It names classes and calibrates; what is learned, and how, is the method's business (:mod:`nocl.methods`). It keeps no
image. Labels inside the learner are hashes of the names, so that models made apart agree on them.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl.app import backbones, modelfile
from nocl.app.calibration import Calibration, hold_out
from nocl.app.fitting import AT_ONCE, calibrate_on, fit_base, is_ready
from nocl.app.naming import label_of, name_from, names_from
from nocl.app.sharing import Sharing, checked_history
from nocl.data import ImageSet
from nocl.data.decode import Fit
from nocl.data.pictures import PictureFiles, Pictures, are_files, batch_of
from nocl.learner import FrozenLearner, Learner, NotFittedError, UnsupportedError
from nocl.methods import make
from nocl.nets.engine import engine_named
from nocl.plumbing.files import DamagedFileError, holding
from nocl.plumbing.parameters import plain
from nocl.plumbing.types import JSON

DEFAULT_METHOD = "rda"  # the best measured here without exemplars that can forget and merge exactly


class Classifier(Sharing):
    """Learns named classes from images, any number of classes at any time, and keeps none of the images.

    ``backbone`` is a network with ImageNet weights (``efficientnet_lite0``, 1 or 2), a packaged one (``cifar100``), a
    safetensors file, ``timm:NAME``, your own as ``module:factory``, or the name of a network to train in ``fit``
    (``reduced_resnet18``). Pictures are brought to ``size`` pixels a side (None: the network's own choice) in the way
    that the network was made for. ``params`` goes to the method and ``recipe`` to the training of the network.
    ``holdout`` is the share of each base class that ``fit`` keeps back to calibrate probabilities with. ``engine`` runs
    a frozen network: ``torch``, ``onnx`` (faster on a processor), or ``auto`` for onnx where it is installed.
    """

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        backbone: str = backbones.DEFAULT,
        size: int | None = None,
        params: Mapping[str, JSON] | None = None,
        recipe: Mapping[str, JSON] | None = None,
        holdout: float = 0.1,
        device: str = "cpu",
        engine: str = "auto",
        seed: int = 0,
    ) -> None:
        if "recipe" in (params or {}):
            raise ValueError("params holds a recipe; give it as Classifier(recipe=...), not inside params")
        backbone, size, holdout, seed = str(backbone), plain(size), plain(holdout), plain(seed)
        modelfile.check_arguments(size=size, holdout=holdout, seed=seed, params=plain(dict(params or {})))
        self.method, self.backbone, self.params = method, backbone, params
        self.size = backbones.find(backbone).side if size is None else size
        self._fit: Fit | None = None  # how pictures are brought to size; None: as the network says
        self.recipe, self.holdout, self.device, self.engine, self.seed = recipe, holdout, device, engine, seed
        self._learner: Learner | None = None
        self._network: Literal["whole", "name"] = "whole"  # how a file holds it
        self._names: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._calibration = Calibration(1.0)
        self.history_, self._entry = [], None

    # --- scikit-learn habits ----------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments that build this classifier again."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **changes: Any) -> Self:
        """Change arguments of a classifier that has learned nothing yet."""
        if self._learner is not None:
            raise ValueError("this classifier has learned already; clone() it with other parameters instead")
        unknown = sorted(set(changes) - set(_PARAMETERS))
        if unknown:
            raise ValueError(f"unknown parameter {unknown[0]!r}. Valid: {', '.join(_PARAMETERS)}")
        if "backbone" in changes:
            changes = {"size": None} | changes  # the other network's own
        self.__dict__.update(Classifier(**(self.get_params() | changes)).__dict__)
        return self

    def __repr__(self) -> str:
        learned = f"{len(self.class_names)} classes, {sum(self.counts_.values())} images"
        return f"Classifier({self.method} on {self.backbone} at {self.size} px: {learned})"

    def clone(self, **changes: Any) -> "Classifier":
        """A fresh classifier with the same arguments, some changed; nothing learned is taken along."""
        return Classifier(**copy.deepcopy(self.get_params())).set_params(**changes)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The names of the classes met, in the order of ``predict_proba``'s columns."""
        return np.array(self.class_names, dtype=np.str_)

    @property
    def class_names(self) -> list[str]:
        labels = [] if self._learner is None else self._learner.classes_.tolist()
        return [self._names[label] for label in labels]

    @property
    def counts_(self) -> dict[str, int]:
        """How many images of each class were learned."""
        return {name: self._counts[name] for name in self.class_names}

    @property
    def learner_(self) -> Learner:
        if self._learner is None:
            raise NotFittedError("this classifier has met no class yet: call fit or partial_fit first")
        return self._learner

    def fit(self, images: Pictures, names: str | Sequence[str], *, workdir: Path | None = None) -> "Classifier":
        """Start anew from base images: train the network if it is to be trained, then learn and calibrate.

        A list of files is read as their turn comes, unless the network is trained on them. An error changes nothing.
        """
        learner = self._build()
        pictures = (
            PictureFiles(images, self.size, self.fit_to_size) if are_files(images) and is_ready(learner) else None
        )
        x = self.read(images).numpy() if pictures is None else pictures.as_array()
        if not len(x):
            raise ValueError("fit needs at least one image")
        labels = self._labels(names, len(x)).numpy()
        kept, held = hold_out(labels, self.holdout, self.seed)
        base = ImageSet.of(x, labels)
        fit_base(learner, base.subset(kept), self.seed, workdir)
        calibration = calibrate_on(learner, base.subset(held)) if len(held) else Calibration(1.0)
        self._reset()
        self._learner = learner
        learned = labels if isinstance(learner, FrozenLearner) else labels[kept]
        self._note(Counter(self._names[label] for label in learned.tolist()))
        self._calibration = calibration
        return self

    def partial_fit(self, images: Pictures, names: str | Sequence[str]) -> "Classifier":
        """Learn from images once: new classes are added, known ones improved. One image is enough.

        Nothing is learned if any of the images cannot be used.
        """
        x, y = self._batch(images, names)
        if not len(x):
            raise ValueError("no images were given: give at least one picture, or leave the call out")
        learner = self._ready()
        if isinstance(learner, FrozenLearner) and type(learner).observe is FrozenLearner.observe:
            # what takes long, and may be interrupted, comes before any learning
            z = torch.cat([learner.features(rows) for rows in x.split(AT_ONCE)])
            self._learn_rows(z, y, learner.learn)
        else:
            self._learn_rows(x, y, learner.observe)
        return self

    def learn_features(self, z: Tensor, names: str | Sequence[str]) -> "Classifier":
        """Learn from features float [B, d] that this model's network made, as ``partial_fit`` does from the images."""
        learner = self.learner_
        if not isinstance(learner, FrozenLearner):
            raise UnsupportedError(f"method {self.method!r} trains its network and learns from images only")
        z = torch.as_tensor(z)
        if z.ndim != 2 or z.shape[1] != learner.feature_dim:
            raise ValueError(f"this model's network makes features of {learner.feature_dim} values, not {[*z.shape]}")
        self._learn_rows(z.to(learner.device), self._labels(names, len(z)), learner.learn)
        return self

    def read(self, images: Pictures) -> Tensor:
        """Pictures as this model's network takes them: uint8 [B, 3, size, size]."""
        return batch_of(images, self.size, self.fit_to_size)

    @property
    def fit_to_size(self) -> Fit:
        """How pictures are brought to size: part of what the network is, and stored with it."""
        if self._fit is None:
            self._fit = backbones.find(self.backbone).fit
        return self._fit

    @property
    def short_side(self) -> int:
        """The shorter side of a picture before its middle is taken."""
        return round(self.size * 256 / 224) if self.fit_to_size == "photo" else self.size

    def decision_function(self, images: Pictures) -> NDArray[np.float64]:
        """The method's own scores [B, K]."""
        scores: NDArray[np.float64] = self._scores(images).double().numpy()
        return scores

    @property
    def calibration_(self) -> Calibration:
        """How scores become probabilities: by held-out base images, or by the method's own temperature without any.

        With the first class that came later it is the method's again, corrected as held-out images once did.
        """
        if self._calibration.images or self._learner is None:
            return self._calibration
        return replace(self._calibration, temperature=self._calibration.carried(self._learner.softmax_temperature()))

    def predict_proba(self, images: Pictures) -> NDArray[np.float64]:
        """Probabilities [B, K]; ``calibration_.images`` held-out images have calibrated them, or none."""
        probabilities: NDArray[np.float64] = self.calibration_.probabilities(self._scores(images)).numpy()
        return probabilities

    def predict(self, images: Pictures, *, reject: bool | float = False) -> NDArray[Any]:
        """Class names [B]. With ``reject``, ``None`` where an image looks like none of the classes.

        ``reject`` is the share of images of known classes that may be refused by mistake; ``True`` is 0.05.
        """
        scores = self._scores(images)
        names: NDArray[Any] = np.array(self.class_names, dtype=object)[scores.argmax(1).numpy()]
        if isinstance(reject, bool | np.bool_) and not reject:
            answers: NDArray[Any] = names.astype(np.str_)
            return answers
        names[self.refused(scores, reject).numpy()] = None
        return names

    def refused(self, scores: Tensor, reject: bool | float) -> Tensor:
        """Which rows of scores [B, K] are too unsure to be any known class: bool [B]."""
        threshold = self._calibration.threshold(0.05 if isinstance(reject, bool | np.bool_) else float(reject))
        return self._calibration.confidences(scores) < threshold

    def score(self, images: Pictures, names: str | Sequence[str]) -> float:
        """The share predicted right."""
        predicted = self.predict(images)
        truth = names_from(names, len(predicted))
        return float(np.mean([p == t for p, t in zip(predicted, truth)])) if truth else float("nan")

    # --- classes ----------------------------------------------------------------------------------------------

    def forget(self, name: str, *, exact: bool = False) -> Self:
        """Remove a class, its name and every statistic of its own.

        Where all classes share a covariance, some of what it gave to that may stay (:meth:`leaves_no_trace`); ``exact``
        refuses this and changes nothing.
        """
        learner, name = self.learner_, name_from(name)
        if name not in self.counts_:
            raise KeyError(f"no class {name!r}; there are: {', '.join(self.class_names[:20])}")
        learner.forget(label_of(name), exact=exact)
        del self._names[label_of(name)]
        self._counts.pop(name, None)
        for entry in self.history_:
            entry["added"].pop(name, None)
        return self

    def leaves_no_trace(self, name: str) -> bool:
        """Whether nothing of this class would stay after ``forget``."""
        name = name_from(name)
        return name in self.counts_ and self.learner_.leaves_no_trace(label_of(name))

    # --- the file ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, network: Literal["whole", "name"] | None = None, held: bool = False) -> None:
        """Write one ``.nocl`` file, whole or not at all; refused while a service or ``nocl learn`` holds the file.

        ``network="name"`` leaves the network's weights out and writes its name and digest: a small file, which needs
        the same network installed where it is loaded. None writes as the file was that this model came from.
        ``held``: the caller holds the file (``nocl.plumbing.files.holding``).
        """
        content, real = self.to_bytes(network=network), Path(path).resolve()
        with nullcontext() if held else holding(real):
            modelfile.put(real, content)
        self._network = network or self._network

    def to_bytes(self, *, network: Literal["whole", "name"] | None = None) -> bytes:
        """The content of the file that ``save`` writes."""
        learner, how = self._ready(), network or self._network
        if how not in ("whole", "name"):
            raise ValueError(f'network must be "whole" or "name", not {network!r}')
        if how == "name" and not backbones.is_ready_by_name(self.backbone):
            raise ValueError(f"the network {self.backbone!r} is not installed under a name: save it whole")
        self._entry = None  # what is learned from now on is a new entry: copies of this file can tell it apart
        return modelfile.to_bytes(learner, self.about(), network=None if how == "whole" else self.backbone)

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False, device: str = "cpu", engine: str = "auto") -> "Classifier":
        """Read a file back: it predicts and goes on learning as if never interrupted."""
        learner, header = modelfile.read(Path(path), trust=trust, device=device)
        try:
            return cls._from(learner, header, device, engine)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedFileError(f"{path}: the header does not describe a model: {error}") from error

    def about(self) -> dict[str, JSON]:
        """What the file's header says beside the method and its parameters."""
        return {
            "classes": list(self.class_names),
            "counts": [self._counts[name] for name in self.class_names],
            "backbone": Path(self.backbone).name if self.backbone.endswith(".safetensors") else self.backbone,
            "normalisation": modelfile.normalisation(self.learner_),
            "fit": self.fit_to_size,
            "engine": getattr(getattr(self.learner_, "engine", None), "name", "torch"),
            "holdout": self.holdout,
            "calibration": self._calibration.to_json(),
            "scoring": self.learner_.scoring,
            "history": [{**entry} for entry in copy.deepcopy(self.history_)],
            "privacy": self.privacy(),
        }

    def privacy(self) -> dict[str, JSON]:
        """What is kept of the images: counted in the learner's state, not promised."""
        return modelfile.privacy(self.learner_, self.counts_)

    @classmethod
    def _from(cls, learner: Learner, header: dict[str, Any], device: str, engine: str) -> "Classifier":
        backbone, params = header["backbone"], learner.get_params()
        seed, side, recipe = params.pop("seed"), params.pop("image_size"), params.pop("recipe")
        del params["backbone"], params["weights"]
        made = cls(
            header["method"], backbone=backbone, size=side, params=params, recipe=recipe or None,  # type: ignore[arg-type]
            holdout=float(header["holdout"]), device=device, engine=engine, seed=seed,  # type: ignore[arg-type]
        )  # fmt: skip
        made._use_engine(learner)
        made._fit = header.get("fit", "crop")  # before there were others, all pictures were cropped
        made._network = "whole" if header.get("network") is None else "name"
        names: list[str] = header["classes"]
        if [label_of(name) for name in names] != learner.classes_.tolist():
            raise ValueError("the class names do not belong to the classes learned")
        made._learner, made._names = learner, {label_of(name): name for name in names}
        made._counts = Counter(dict(zip(names, header["counts"])))
        calibration = Calibration.from_json(header["calibration"])
        made._calibration = calibration if header.get("scoring", 1) == learner.scoring else Calibration(1.0)
        made.history_ = checked_history(header["history"])
        return made

    # --- inside -----------------------------------------------------------------------------------------------

    def _ready(self) -> Learner:
        """The learner, built on first use: a network that is trained can learn, and be saved, before any class came."""
        if self._learner is None:
            learner = self._build()
            if not learner.base_:
                raise NotFittedError(
                    f"the network {self.backbone!r} is not trained yet: call fit on base images first, "
                    f"or take a trained one such as backbone={backbones.DEFAULT!r}"
                )
            self._learner = learner
        return self._learner

    def _reset(self) -> None:
        self._counts, self.history_, self._entry = Counter(), [], None
        self._calibration = Calibration(1.0)

    def _build(self) -> Learner:
        learner = make(
            self.method, **plain(dict(self.params or {})),
            backbone=backbones.find(self.backbone).network, recipe=plain(dict(self.recipe or {})),
            image_size=self.size, seed=self.seed,
        )  # fmt: skip
        learner.base_ = backbones.fill(learner.network, self.backbone)
        learner.network.eval()
        self._use_engine(learner)
        return learner.to(self.device)

    def _use_engine(self, learner: Learner) -> None:
        if isinstance(learner, FrozenLearner):
            learner.engine = engine_named(self.engine)

    def _batch(self, images: Pictures, names: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """Images and labels, all checked before anything changes."""
        x = self.read(images)
        return x, self._labels(names, len(x))

    def _learn_rows(self, rows: Tensor, y: Tensor, learn: Callable[[Tensor, Tensor], None]) -> None:
        for part, labels in zip(rows.split(AT_ONCE), y.split(AT_ONCE)):
            learn(part, labels)
            self._note(Counter(self._names[label] for label in labels.tolist()))

    def _labels(self, names: str | Sequence[str], count: int) -> Tensor:
        given = names_from(names, count)
        labels = {name: label_of(name) for name in dict.fromkeys(given)}
        self._names |= {label: name for name, label in labels.items()}
        return torch.tensor([labels[name] for name in given], dtype=torch.int64)

    @torch.no_grad()
    def _scores(self, images: Pictures) -> Tensor:
        learner = self.learner_
        if not len(learner.classes_):
            raise NotFittedError("this classifier knows no class: call fit or partial_fit first")
        x = self.read(images)
        parts = [learner.decision_function(rows).cpu() for rows in x.split(AT_ONCE)] if len(x) else []
        return torch.cat(parts) if parts else torch.zeros(0, len(learner.classes_))


_PARAMETERS = [name for name in inspect.signature(Classifier.__init__).parameters if name != "self"]
