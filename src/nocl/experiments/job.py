"""One run as a plain description: what to build and on what, enough to do it again, and nothing measured yet."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from nocl import data
from nocl.learner import FrozenLearner, Learner
from nocl.methods import METHODS, make
from nocl.nets.engine import engine_named
from nocl.plumbing.files import digest, file_digest, write_json
from nocl.plumbing.parameters import check_values
from nocl.plumbing.registry import UnknownNameError, by_name, unknown
from nocl.plumbing.types import JSON
from nocl.streams import Stream, arrange, class_incremental, parse_plan

FILE = "run.json"
PRESET = "nocl preset"


@dataclass(frozen=True)
class Job:
    """A method on a stream. ``root`` says where the data lie and ``device`` where to compute; neither is identity."""

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

    def __post_init__(self) -> None:
        """A wrong name is an error before any data are loaded."""
        if self.arrivals:
            parse_plan(self.arrivals)
        if self.test_every < 0:
            raise ValueError(f"test_every must be 0 or more images, not {self.test_every}")
        check_values(by_name(self.method, METHODS, "method"), {**self._preset(), **self.params})

    def stream(self) -> Stream:
        """The stream, its data loaded."""
        images = data.load(self.dataset, root=None if self.root is None else Path(self.root), **self.options)
        order_seed = self.seed if self.order_seed is None else self.order_seed
        if self.arrivals:
            return arrange(
                images, self.arrivals, order_seed=order_seed, seed=self.seed,
                batch_size=self.batch_size, base_batch_size=self.base_batch_size,
            )  # fmt: skip
        return class_incremental(
            images, partition=self.partition, order_seed=order_seed,
            batch_size=self.batch_size, base_batch_size=self.base_batch_size,
        )  # fmt: skip

    def learner(self, image_size: int) -> Learner:
        """The learner, for images of that size."""
        learner = make(self.method, **{"image_size": image_size, "seed": self.seed, **self.chosen()})
        if isinstance(learner, FrozenLearner):
            learner.engine = engine_named(self.engine)
        return learner.to(self.device)

    def chosen(self) -> dict[str, JSON]:
        """Parameters that are not the method's defaults. What the user set stands over the preset."""
        return over(self._preset(), self.params)

    def name(self) -> str:
        """A folder name: readable, and different for different runs."""
        method = self.method.replace(":", ".").replace("/", "-")
        kind = self.arrivals.partition(":")[0] or self.partition
        return f"{method}-{self.dataset}-{kind}-seed{self.seed}-{self.digest()[:8]}"

    def digest(self) -> str:
        """Content hash of everything that decides the result; a weights file counts by what it holds."""
        identity: dict[str, JSON] = {k: v for k, v in asdict(self).items() if k not in ("root", "device")}
        for name in ("arrivals", "test_every"):  # so that runs without them keep their names
            if not identity[name]:
                del identity[name]
        if self.engine == "torch":
            del identity["engine"]
        weights = self.params.get("weights")
        if isinstance(weights, str) and Path(weights).is_file():
            identity["params"] = {**self.params, "weights": file_digest(Path(weights))}
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

    def _preset(self) -> dict[str, JSON]:
        if self.preset is None:
            return {}
        presets = by_name(self.method, METHODS, "method").presets
        if self.preset not in presets:
            raise UnknownNameError(unknown(self.preset, presets, f"preset of {self.method}"))
        return presets[self.preset]


def over(preset: dict[str, JSON], params: dict[str, JSON]) -> dict[str, JSON]:
    """Parameters with those of a preset where they are silent, in the recipe too.

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
