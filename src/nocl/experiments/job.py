"""The description of one run: all settings that are needed to repeat it, and nothing measured.

Every command describes its runs this way and performs them by :meth:`Job.run`: `nocl run`, `compare`, `reproduce`,
`tune`, on this machine or on a cluster.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeGuard

from nocl import data
from nocl.data import embeddings
from nocl.data.features import FeatureData, extract, trained_classes
from nocl.experiments.base_copy import base_only
from nocl.experiments.base_shared import share_base
from nocl.experiments.on_network import arrange_on_network, stream_on_network
from nocl.learner import FrozenLearner, Learner
from nocl.methods import METHODS, make
from nocl.nets.engine import engine_named
from nocl.plumbing.files import digest, file_digest, write_json
from nocl.plumbing.parameters import check_values, parameters_of
from nocl.plumbing.registry import UnknownNameError, by_name, unknown
from nocl.plumbing.types import JSON
from nocl.pretrain import trains_on_features
from nocl.results import RunResult
from nocl.run import run
from nocl.streams import Stream, arrange, class_incremental, parse_plan

FILE = "run.json"
PRESET = "nocl preset"
FEATURES_AT_ONCE = 500  # batch size for methods whose result does not depend on it
TESTED_AT_ONCE = 2000  # features; of images, as many as `run` takes by default
_NOT_IDENTITY = ("root", "device", "feature_cache", "allow_leak")
_UNSET: dict[str, JSON] = {  # left out if they have this value, so that older runs keep their names
    "engine": "torch", "arrivals": "", "test_every": 0, "network_from": None, "copy_partition": None,
    "copy_holdout": 0.2, "foreign_order": False,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A method on a stream.

    ``network_from`` names a network's file, or is ``pretrained`` for the weights that belong to the backbone's name.
    Its classes stay the base classes, so that ``order_seed`` permutes the classes that follow (or is the seed of
    ``arrivals``), and no network is trained: methods on a frozen network run on features that are computed once and
    kept, the others get the network as their weights. Classes of that network that would come as novel ones are refused
    unless ``allow_leak``, and results say how many they are. ``foreign_order`` takes the class order of ``order_seed``
    whatever the network was trained on, as the paper's published code does. The data set ``embeddings`` is such
    features already. ``copy_partition`` runs on the small copy of the problem that is made of the base classes'
    training images alone, for choosing parameters.

    ``root``, ``feature_cache`` and ``device`` say where data are and where to compute. They are not part of a run's
    identity.
    """

    method: str
    params: dict[str, JSON] = field(default_factory=dict)
    preset: str | None = None
    dataset: str = "glyphs"
    options: dict[str, JSON] = field(default_factory=dict)
    root: str | None = None
    partition: str = "60+4x10"
    seed: int = 0
    order_seed: int | None = None  # None: the seed
    batch_size: int = 10
    base_batch_size: int = 100
    device: str = "cpu"
    engine: str = "torch"  # what runs a frozen network: torch or onnx, see nocl.nets.engine
    arrivals: str = ""  # another stream than that of ``partition``: ``si_blurry:sessions=5``, see nocl.arrivals
    test_every: int = 0  # images between tests in the middle of sessions; 0: tests at their ends only
    network_from: str | None = None
    feature_cache: str | None = None  # None: the user's cache
    allow_leak: bool = False
    foreign_order: bool = False
    copy_partition: str | None = None
    copy_holdout: float = 0.2  # the part of each class in that copy that is tested on

    def __post_init__(self) -> None:
        """Check all names before any data are loaded."""
        if self.arrivals:
            parse_plan(self.arrivals)
        if self.test_every < 0:
            raise ValueError(f"test_every must be 0 or more images, not {self.test_every}")
        check_values(method := method_of(self.method), {**self._preset(), **self.params})
        if isinstance(recipe := self.chosen().get("recipe"), dict):
            method.base_recipe.with_changes(recipe)
        for name in ("batch_size", "base_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if isinstance(seed := self.chosen().get("seed", self.seed), int) and not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must be from -2**63 to below 2**63, not {seed}")  # PyTorch's seeds
        if self.arrivals and self.copy_partition:
            raise ValueError(f"arrivals={self.arrivals!r}: only a stream by partition can be copied for tuning")
        if self.network_from is not None and self.chosen().get("weights"):
            raise ValueError("a run takes its network from one file: give network_from or the parameter weights")
        if self._on_vectors() and (self.network_from or self.copy_partition or self.chosen().get("weights")):
            raise ValueError("embeddings are features already: give no network for them, and tune on images instead")
        if self.copy_partition is not None and (self.network_from or self.chosen().get("weights")):
            raise ValueError(
                "a given network has seen the classes that tuning holds out as novel: leave --backbone-from out, "
                "so that one is trained without them"
            )

    def run(
        self,
        *,
        folder: Path | None = None,
        cache: Path | None = None,
        on_session: Callable[[RunResult], None] | None = None,
    ) -> RunResult:
        """Do the run; arguments as in :func:`nocl.run.run`. With a folder, an interrupted run continues.

        With a cache, runs on the same features share what a method learns in the base session.
        """
        stream = self.stream()
        learner = self.learner(stream.image_size, novel=sum(map(len, stream.blocks[1:])))
        if folder is not None:
            self.save(folder)
        if cache is not None and stream.data.made_by and stream.base.classes:
            share_base(learner, stream.base, cache)
        more: dict[str, Any] = {"test_batch": TESTED_AT_ONCE} if stream.data.made_by else {}
        return run(
            learner, stream, folder=folder, cache=cache, on_session=on_session, test_every=self.test_every, **more
        )

    def stream(self) -> Stream:
        """The stream, its data loaded."""
        images = self.images()
        if self.network_from is not None:
            return self._on_network(images, Path(self.network_from))
        if isinstance(images, FeatureData):
            learner = self._on_images(images.image_size)
            if not takes_features(learner):
                raise TypeError(f"{self.method} as it is set needs images, not embeddings of them; try rda")
            return self._cut_on((), images, rows_at_once=self._rows_at_once(learner))
        if self.arrivals:
            return arrange(
                images, self.arrivals, order_seed=self._order(), seed=self.seed, batch_size=self.batch_size,
                base_batch_size=self.base_batch_size,
            )  # fmt: skip
        stream = self._cut(images, self.partition)
        if self.copy_partition is None:
            return stream
        copied = base_only(images, stream.blocks[0], holdout=self.copy_holdout, seed=self.seed)
        return self._cut(copied, self.copy_partition)

    def _on_network(self, images: data.Dataset, network: Path) -> Stream:
        """The stream of the given network's features, or of images where the method needs them."""
        learner, known = self._on_images(images.image_size), trained_classes(network) or ()
        if not takes_features(learner):
            return self._cut_on(known, images)
        cache = None if self.feature_cache is None else Path(self.feature_cache)
        features = extract(
            images, network, cache=cache, backbone=learner.backbone, stages=learner.stages, device=self.device,
            engine=self.engine,
        )  # fmt: skip
        return self._cut_on(known, features, allow_leak=self.allow_leak, rows_at_once=self._rows_at_once(learner))

    def images(self) -> data.Dataset:
        """The data set."""
        return data.load(self.dataset, root=None if self.root is None else Path(self.root), **self.options)

    def check_order(self) -> None:
        """Refuse a given network that was trained on novel classes of this stream, before anything is computed."""
        images = self.images()
        if isinstance(images, FeatureData):
            self._cut_on((), images)
        elif self.network_from is not None:
            allowed = self.allow_leak and self.on_features()
            self._cut_on(trained_classes(Path(self.network_from)) or (), images, allow_leak=allowed)

    def learner(self, image_size: int, novel: int = 0) -> Learner:
        """The learner, for images of that size or for their features, and for so many novel classes (0: not known)."""
        learner = self._on_images(image_size, novel)
        if self.network_from is not None:
            learner = make(self.method, **{**self._arguments(image_size, novel), **self._given(learner)})
        if isinstance(learner, FrozenLearner):
            learner.engine = engine_named(self.engine)
        return learner.to(self.device)

    def on_features(self) -> bool:
        """True if the run needs only the features of the given network, not the images."""
        return (self.network_from is not None or self._on_vectors()) and takes_features(self._on_images(32))

    def chosen(self) -> dict[str, JSON]:
        """Parameters that are not the method's defaults. The user's settings override the preset."""
        return over(self._preset(), self.params)

    def outdated(self, result: RunResult) -> dict[str, JSON]:
        """Numbers of that result that were defaults when it was made, are not set here, and are others today.

        ``scoring``, if the method scores otherwise today.
        """
        method = by_name(self.method, METHODS, "method")
        decided = {*self.chosen(), "seed", "image_size", method.novel_classes}  # by the job, or by the run itself
        decided |= {"power"} if self._on_vectors() else set()
        usual = {name: each.default for name, each in parameters_of(method).items() if name not in decided}
        numbers = {name: default for name, default in usual.items() if isinstance(default, (int, float))}
        former: dict[str, JSON] = {} if result.scoring == method.scoring else {"scoring": result.scoring}
        return former | {
            name: result.params[name] for name in numbers if result.params.get(name, numbers[name]) != numbers[name]
        }

    def name(self) -> str:
        """A folder name: readable, and different for different runs."""
        method = self.method.replace(":", ".").replace("/", "-")
        dataset = self.dataset.replace(":", ".").replace("/", "-")
        order = "" if self.order_seed is None else f"-order{self.order_seed}"
        kind = self.arrivals.partition(":")[0] or self.partition
        return f"{method}-{dataset}-{kind}-seed{self.seed}{order}-{self.digest()[:8]}"

    def digest(self) -> str:
        """Hash of everything that determines the result; of a network's file, its content."""
        identity: dict[str, JSON] = {
            name: value
            for name, value in asdict(self).items()
            if name not in _NOT_IDENTITY and _UNSET.get(name, ...) != value
        }
        if self.network_from is not None:
            identity["network_from"] = _content(self.network_from)
        if self._on_vectors():
            held = {name: _content(str(self.options[name])) for name in embeddings.FILES if self.options.get(name)}
            identity["options"] = {**self.options, **held}
        if isinstance(weights := self.params.get("weights"), str):
            identity["params"] = {**self.params, "weights": _content(weights)}
        return digest(identity)

    def save(self, folder: Path) -> None:
        """Write the description beside the run's state and result."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The description of the run in that folder."""
        try:
            values = json.loads((folder / FILE).read_text("utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} holds no run: there is no {FILE} in it") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{folder / FILE} is not whole JSON ({error}); start the run again") from error
        names = {f.name for f in fields(cls)}
        if not isinstance(values, dict) or not values.keys() <= names or "method" not in values:
            raise ValueError(f"{folder / FILE} does not describe a run")
        return cls(**values)

    def with_changes(self, **changes: JSON) -> Self:
        """The same job with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def _on_images(self, image_size: int, novel: int = 0) -> Learner:
        return make(self.method, **self._arguments(image_size, novel))

    def _given(self, learner: Learner) -> dict[str, JSON]:
        """Parameters that put the learner on the given network: on its features, or on the network itself."""
        if not takes_features(learner):
            return {"weights": self.network_from}
        kept = {name: value for name, value in learner.get_params().items() if name == "stages" and value is not None}
        return {"backbone": f"features:{learner.feature_dim}", **kept}

    def _arguments(self, image_size: int, novel: int = 0) -> dict[str, JSON]:
        announced = by_name(self.method, METHODS, "method").novel_classes
        follows: dict[str, JSON] = {announced: novel} if announced and novel else {}
        return {"image_size": image_size, "seed": self.seed, **follows, **self._for_vectors(), **self.chosen()}

    def _on_vectors(self) -> bool:
        return self.dataset == embeddings.NAME

    def _for_vectors(self) -> dict[str, JSON]:
        """Parameters of a learner on embeddings: their length, and power 1 if there are negative values."""
        rows = self.images() if self._on_vectors() else None
        if not isinstance(rows, embeddings.Embeddings):
            return {}
        takes_power = "power" in parameters_of(by_name(self.method, METHODS, "method"))
        power: dict[str, JSON] = {"power": 1.0} if takes_power and rows.has_negative else {}
        return {"backbone": f"features:{rows.feature_dim}", **power}

    def _rows_at_once(self, learner: Learner) -> int | None:
        free = isinstance(learner, FrozenLearner) and not learner.depends_on_batching
        return max(self.batch_size, FEATURES_AT_ONCE) if free else None

    def _cut(self, images: data.Dataset, partition: str) -> Stream:
        return class_incremental(
            images,
            partition=partition,
            batch_size=self.batch_size,
            base_batch_size=self.base_batch_size,
            order_seed=self._order(),
        )

    def _cut_on(
        self, known: Sequence[int], images: data.Dataset, *, allow_leak: bool = False, rows_at_once: int | None = None
    ) -> Stream:
        if self.arrivals:
            return arrange_on_network(
                images, known, arrivals=self.arrivals, batch_size=self.batch_size,
                base_batch_size=self.base_batch_size, seed=self._order(), allow_leak=allow_leak,
                rows_at_once=rows_at_once,
            )  # fmt: skip
        return stream_on_network(
            images, known, partition=self.partition, batch_size=self.batch_size,
            base_batch_size=self.base_batch_size, order_seed=self._order(), allow_leak=allow_leak,
            foreign_order=self.foreign_order,
            rows_at_once=rows_at_once,
        )  # fmt: skip

    def _order(self) -> int:
        return self.seed if self.order_seed is None else self.order_seed

    def _preset(self) -> dict[str, JSON]:
        if self.preset is None:
            return {}
        presets = method_of(self.method).presets
        if not presets:
            raise UnknownNameError(f"{self.method} has no presets: leave preset {self.preset!r} out")
        if self.preset not in presets:
            raise UnknownNameError(unknown(self.preset, presets, f"preset of {self.method}"))
        return presets[self.preset]


def method_of(name: str) -> type[Learner]:
    """The class of a method, by its name or as ``module:Class``."""
    found = by_name(name, METHODS, "method")
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise TypeError(f"{name} is not a method: it must be a class derived from nocl.Learner")
    return found


def takes_features(learner: Learner) -> TypeGuard[FrozenLearner]:
    """True if a learner needs only features of the images, also in the base session."""
    if not isinstance(learner, FrozenLearner) or learner.sees_images:
        return False
    return not learner.needs_heads() or trains_on_features(learner.full_recipe)


def _content(path: str) -> str:
    return file_digest(Path(path)) if Path(path).is_file() else path


def over(preset: dict[str, JSON], params: dict[str, JSON]) -> dict[str, JSON]:
    """A preset's parameters, overridden by the given ones, also inside the recipe.

    >>> over({"rho": 1, "recipe": {"tau": 0.07}}, {"rho": 2, "recipe": {"epochs": 3}})
    {'rho': 2, 'recipe': {'tau': 0.07, 'epochs': 3}}
    """
    chosen = {**preset, **params}
    low, high = preset.get("recipe"), params.get("recipe")
    if isinstance(low, dict) and isinstance(high, dict):
        chosen["recipe"] = {**low, **high}
    return chosen


def read_preset(path: Path, method: str) -> dict[str, JSON]:
    """The parameters in a preset file, as `nocl tune` writes it; refused if it was made for another method."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such preset file") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not whole JSON ({error})") from error
    params = values.get("params") if isinstance(values, dict) else None
    if not isinstance(params, dict) or values.get("kind") != PRESET:
        raise ValueError(f"{path} is no preset: it must hold kind {PRESET!r}, a method and params")
    if values.get("method") != method:
        raise ValueError(f"{path} is a preset of {values.get('method')}, not of {method}")
    return params


def parse_settings(pairs: list[str]) -> dict[str, JSON]:
    """``key=value`` texts as a nested dictionary; values are JSON where they can be, else text.

    >>> parse_settings(["power=0.3", "recipe.lr=0.05", "metric=cosine"])
    {'power': 0.3, 'recipe': {'lr': 0.05}, 'metric': 'cosine'}
    """
    settings: dict[str, JSON] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ValueError(f"setting {pair!r}: write key=value, for example power=0.5 or recipe.lr=0.05")
        try:
            value: JSON = json.loads(text)
        except json.JSONDecodeError:
            value = text
        target = settings
        *parents, last = key.split(".")
        for parent in parents:
            inner = target.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ValueError(f"setting {pair!r}: {parent} already has a plain value")
            target = inner
        target[last] = value
    return settings
