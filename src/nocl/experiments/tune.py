"""Choosing hyper-parameters with Optuna on the base session alone; no novel class and no test image is used.

Each trial is an ordinary :class:`Job` on the small copy of the problem that ``base_copy`` makes of the base classes'
training images: some of the classes are its base, the rest come in sessions. The first trial is the method's own
defaults. The study is in a folder, continues there after an interruption, and ends with a preset file for ``nocl run
--preset``.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nocl.data import Dataset
from nocl.experiments.base_copy import PARTITION
from nocl.experiments.job import PRESET, Job, method_of, over, parse_settings
from nocl.learner import Learner
from nocl.plumbing.files import digest, write_json
from nocl.plumbing.parameters import parameters_of
from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.plumbing.types import JSON
from nocl.pretrain import Recipe
from nocl.results import RunResult

METRICS = ("acc", "hm", "average")
_SYNTAX = "write name=low:high, name=low:high:log, name=low:high:int or name=a,b,c"


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
            low, high = _number(found[1], text), _number(found[2], text)
            if found[3] == ":int" and not (low.is_integer() and high.is_integer()):
                raise ValueError(f"space {text!r}: with int, both ends must be whole numbers")
            if not low < high or (found[3] == ":log" and low <= 0):
                raise ValueError(f"space {text!r}: the first must be below the second, and above 0 with log")
            return cls(name, low, high, found[3] == ":log", found[3] == ":int")
        if not name or not rest or ":" in rest:
            raise ValueError(f"space {text!r}: {_SYNTAX}")
        return cls(name, choices=tuple(parse_settings([f"x={part}"])["x"] for part in rest.split(",")))

    @property
    def ends(self) -> tuple[JSON, ...]:
        """The choices, or the lowest and the highest value."""
        return self.choices or ((int(self.low), int(self.high)) if self.whole else (self.low, self.high))

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
        """True if the value is in the space."""
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
    """The given spaces, or those that the method declares."""
    own = vars(method_of(method)).get("search_space", ())  # a subclass may lack the parameters
    if not texts and not own:
        raise ValueError(f"{method} declares no search space; give one or more with --space name=low:high")
    return [Space.parse(text) for text in texts or own]


def check_spaces(job: Job, spaces: Sequence[Space]) -> None:
    """Refuse a space of a parameter that the method does not have, and one whose ends or choices it does not take."""
    declared = dict(parameters_of(method_of(job.method)))
    declared |= {f"recipe.{name}": parameter for name, parameter in parameters_of(Recipe).items()}
    last = {space.name: space.ends[-1] for space in spaces}
    if len(last) < len(spaces):
        raise ValueError(f"spaces {', '.join(space.name for space in spaces)}: give each parameter one space")
    for space in spaces:
        if space.name not in declared:
            raise UnknownNameError(unknown(space.name, declared, f"parameter of {job.method}"))
        if declared[space.name].whole and not (space.whole or space.choices):
            whole = f"{space.name}={space.low:g}:{space.high:g}:int"
            raise ValueError(f"{space.name} takes whole numbers alone: write the space as {whole}")
        for value in space.ends:
            replace(job, params=over(job.params, _nested(last | {space.name: value})))  # checks all values


def tune(job: Job, spaces: Sequence[Space], folder: Path, tuning: Tuning = Tuning()) -> Path:  # noqa: B008
    """Run the trials that are missing in ``folder`` and write ``preset.json`` there; returns its path."""
    optuna = _optuna()
    trial_job = replace(job, copy_partition=tuning.partition, copy_holdout=tuning.holdout)
    check_spaces(trial_job, spaces)
    stream = trial_job.stream()
    about = _about(job, spaces, tuning, stream.data)
    study = _study(optuna, folder, about)
    if not study.trials:
        study.enqueue_trial(_defaults(trial_job.learner(stream.image_size), spaces))

    def value(trial: Any) -> float:
        settings = {space.name: space.suggest(trial) for space in spaces}
        tried = replace(trial_job, params=over(job.params, _nested(settings)))
        return _measure(tried.run(cache=folder / "cache"), tuning.metric)

    states = optuna.trial.TrialState
    while _count(study, states.COMPLETE) < tuning.trials:
        study.sampler = optuna.samplers.TPESampler(seed=(job.seed + len(study.trials)) % 2**32)  # also if interrupted
        study.optimize(value, n_trials=1, catch=(ArithmeticError, ValueError, RuntimeError))
        if (failed := _count(study, states.FAIL)) >= 2 * tuning.trials:
            raise RuntimeError(f"{failed} trials failed: narrow the space; the reasons are in the messages above")
    return _write_preset(job, study, folder, about)


def _number(text: str, space: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"space {space!r}: {text!r} is not a number; {_SYNTAX}")
    return number


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
