"""Choosing hyper-parameters with Optuna on the base session alone; no novel class and no test image is touched.

Each trial runs the whole protocol on the small copy of the problem that ``base_copy`` makes of the base classes'
training images: some of the classes are its base, the rest come in sessions. The first trial is the method's own
defaults. The study lies in a folder, goes on there after a stop, and ends in a preset file for ``nocl run --preset``.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nocl.data import Dataset
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.experiments.job import PRESET, Job, over, parse_settings
from nocl.learner import Learner
from nocl.methods import make
from nocl.plumbing.files import digest, write_json
from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from nocl.run import run
from nocl.streams import Stream, class_incremental

METRICS = ("acc", "hm", "average")
SPACES: dict[str, tuple[str, ...]] = {  # what is worth choosing; anything else by --space
    "acil": ("gamma=0.001:100:log",),
    "dsr": ("power=0.2:1", "rho=0.001:1:log", "outer_lr=0.001:0.1:log", "iterations=5:50:int"),
    "fecam": ("power=0.2:1", "alpha1=0.1:10:log", "alpha2=0.1:10:log"),
    "finetune": ("lr=0.0001:0.1:log",),
    "ncm": ("power=0.2:1", "metric=cosine,euclidean"),
    "ranpac": ("ridge=0.01:1000000:log", "scaled=false,true"),
    "rda": ("power=0.2:1", "prior=0.3:30:log", "ridge=0.0001:0.1:log"),
    "slda": ("power=0.2:1", "shrinkage=0.00001:0.1:log"),
}


@dataclass(frozen=True)
class Space:
    """The values a parameter may take: a range or a list."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[JSON, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Space":
        """From ``power=0.2:1``, ``lr=0.001:0.1:log``, ``iterations=5:50:int`` or ``metric=cosine,euclidean``.

        >>> Space.parse("iterations=5:50:int")
        Space(name='iterations', low=5.0, high=50.0, log=False, whole=True, choices=())
        """
        name, _, rest = text.partition("=")
        number = r"[-+.\deE]+"
        if found := re.fullmatch(rf"({number}):({number})(:log|:int)?", rest):
            low, high = float(found[1]), float(found[2])
            if not low < high or (found[3] == ":log" and low <= 0):
                raise ValueError(f"space {text!r}: the first must be below the second, and above 0 with log")
            return cls(name, low, high, found[3] == ":log", found[3] == ":int")
        if not name or not rest or ":" in rest:
            raise ValueError(f"space {text!r}: write name=low:high, name=low:high:log, name=low:high:int or name=a,b,c")
        return cls(name, choices=tuple(parse_settings([f"x={part}"])["x"] for part in rest.split(",")))

    def suggest(self, trial: Any) -> JSON:
        """A value for an Optuna trial."""
        if self.choices:
            found: JSON = trial.suggest_categorical(self.name, list(self.choices))
        elif self.whole:
            found = trial.suggest_int(self.name, int(self.low), int(self.high))
        else:
            found = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return found

    def holds(self, value: JSON) -> bool:
        """Whether the value lies in the space."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Tuning:
    """How to choose: by which number, in how many trials, how the base classes are split."""

    trials: int = 20
    metric: str = "acc"
    partition: str = PARTITION
    holdout: float = 0.2

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UnknownNameError(unknown(self.metric, METRICS, "metric"))
        if self.trials < 1:
            raise ValueError(f"trials must be 1 or more, not {self.trials}")


def spaces_of(method: str, texts: Sequence[str] = ()) -> list[Space]:
    """The given spaces, or those kept for the method."""
    if not texts and method not in SPACES:
        raise ValueError(f"no search space is kept for {method}; give one or more with --space name=low:high")
    return [Space.parse(text) for text in texts or SPACES[method]]


def tune(job: Job, spaces: Sequence[Space], folder: Path, tuning: Tuning = Tuning()) -> Path:  # noqa: B008
    """Run the trials that are missing in ``folder`` and write ``preset.json`` there; returns its path."""
    optuna = _optuna()
    if job.chosen().get("weights"):
        raise ValueError(
            "a given network has seen the classes that tuning holds out as novel: leave --backbone-from out, "
            "so that one is trained without them"
        )
    stream = job.stream()
    images = base_only(stream.data, stream.blocks[0], holdout=tuning.holdout, seed=job.seed)
    about = _about(job, spaces, tuning, images)
    study = _study(optuna, folder, about)
    learner = _learner(job, images.image_size, {})
    if not study.trials:
        study.enqueue_trial(_defaults(learner, spaces))

    def value(trial: Any) -> float:
        settings = {space.name: space.suggest(trial) for space in spaces}
        copy = _pseudo(job, images, tuning)
        result = run(_learner(job, images.image_size, _nested(settings)), copy, cache=folder / "cache")
        return _measure(result, tuning.metric)

    states = optuna.trial.TrialState
    while _count(study, states.COMPLETE) < tuning.trials:
        study.sampler = optuna.samplers.TPESampler(seed=job.seed + len(study.trials))  # also after a stop
        study.optimize(value, n_trials=1, catch=(ArithmeticError, ValueError, RuntimeError))
        if (failed := _count(study, states.FAIL)) >= 2 * tuning.trials:
            raise RuntimeError(f"{failed} trials failed: narrow the space; the reasons are in the messages above")
    return _write_preset(job, study, folder, about)


def _pseudo(job: Job, images: Dataset, tuning: Tuning) -> Stream:
    return class_incremental(
        images, partition=tuning.partition, batch_size=job.batch_size, base_batch_size=job.base_batch_size,
        order_seed=job.seed,
    )  # fmt: skip


def _learner(job: Job, image_size: int, settings: dict[str, JSON]) -> Learner:
    params = {"image_size": image_size, "seed": job.seed, **over(job.chosen(), settings)}
    return make(job.method, **params).to(job.device)


def _nested(settings: dict[str, JSON]) -> dict[str, JSON]:
    """``recipe.lr`` as a value inside ``recipe``."""
    plain = {name: value for name, value in settings.items() if "." not in name}
    recipe = {name.removeprefix("recipe."): value for name, value in settings.items() if name.startswith("recipe.")}
    return {**plain, "recipe": recipe} if recipe else plain


def _defaults(learner: Learner, spaces: Sequence[Space]) -> dict[str, JSON]:
    """The learner's own values, where they lie in the space."""
    own = learner.get_params() | {f"recipe.{name}": value for name, value in learner.full_recipe.to_json().items()}
    return {space.name: own[space.name] for space in spaces if space.name in own and space.holds(own[space.name])}


def _measure(result: RunResult, metric: str) -> float:
    found = {"acc": result.acc, "hm": result.hm, "average": result.average}[metric]
    assert found is not None  # the copy has novel sessions
    return found


def _about(job: Job, spaces: Sequence[Space], tuning: Tuning, images: Dataset) -> dict[str, JSON]:
    """What the study is about; a study of something else is refused. The number of trials may grow."""
    settings = {name: value for name, value in asdict(tuning).items() if name != "trials"}
    kept: list[JSON] = [{**asdict(space), "choices": list(space.choices)} for space in spaces]
    return {"job": job.digest(), "spaces": kept, "images": images.fingerprint, **settings}


def _study(optuna: Any, folder: Path, about: dict[str, JSON]) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend), study_name="nocl", direction="maximize", load_if_exists=True
    )
    if study.user_attrs.get("about", digest(about)) != digest(about):
        raise ValueError(f"{folder} holds a study of another job or space; choose another folder or delete it")
    study.set_user_attr("about", digest(about))
    return study


def _count(study: Any, state: Any) -> int:
    return len(study.get_trials(deepcopy=False, states=(state,)))


def _write_preset(job: Job, study: Any, folder: Path, about: dict[str, JSON]) -> Path:
    path = folder / "preset.json"
    trials: list[JSON] = [
        {"number": trial.number, "params": trial.params, "value": trial.value, "state": trial.state.name}
        for trial in study.trials
    ]
    chosen = over(job.chosen(), _nested(study.best_params))
    write_json(
        path,
        {
            "kind": PRESET, "method": job.method, "params": chosen, "value": study.best_value,
            "dataset": job.dataset, "partition": job.partition, "seed": job.seed, "study": about, "trials": trials,
        },
    )  # fmt: skip
    return path


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("nocl tune needs the extra: pip install 'nocl[tune]'") from error
    return optuna
