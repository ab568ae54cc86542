"""The result of one run: a frozen record with a versioned JSON form, written whole or not at all.

Holds what was measured and what is needed to measure it again.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from nocl import metrics
from nocl.metrics import Anytime, Scores
from nocl.plumbing.files import write_json
from nocl.plumbing.machine import environment, peak_memory
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__

FORMAT = 1
CONFUSION = ("base_right", "base_as_base", "base_as_novel", "novel_right", "novel_as_base", "novel_as_novel")
TAGS = ("stores_exemplars", "uses_boundaries")
STATE = ("network", "statistics", "exemplars")


class InvalidResultError(ValueError):
    """A result with a missing, mistyped or contradictory field; the message names it."""


_OPTIONAL = {"anytime", "scoring"}  # fields that a file need not have


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One method on one stream with one seed. Every field is checked on construction."""

    method: str  # key of METHODS or "module:Class"
    params: dict[str, JSON]  # the learner's hyper-parameters
    tags: dict[str, bool]  # stores_exemplars, uses_boundaries
    stream: dict[str, JSON]  # enough to rebuild it: data set, fingerprint, partition, order seed, class order ...
    seed: int
    session_classes: tuple[tuple[int, ...], ...]  # what each session planned brings for the first time, the base first
    accuracy: tuple[tuple[float | None, ...], ...]  # [after session t][on those classes' test images], class mean, 0..1
    class_accuracy: tuple[tuple[float | None, ...], ...]  # [after session t][class, in order of session_classes]
    confusion: tuple[dict[str, int], ...]  # per session, counts of test images by the names in CONFUSION
    seconds: tuple[float, ...]  # base training and statistics first, then learning each session
    test_seconds: tuple[float, ...]  # tests in the middle of a session included
    peak_memory: int | None  # bytes of resident memory
    state_bytes: dict[str, int]  # network, statistics, exemplars after the last session
    base: dict[str, JSON]  # how the network was made: recipe, epochs, weights file and hash, cache key
    environment: dict[str, JSON]
    log: dict[str, JSON]  # the method's own curves, {} if it has none
    format: int = FORMAT
    finished: bool  # False while sessions are still to come
    anytime: Anytime | None = None  # tests in the middle of sessions, if there were any
    scoring: int = 1  # the edition of the method's scores

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, read(getattr(self, name), name))
        _check_shapes(self)
        _check_seen(self)
        _check_anytime(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each session, the base first."""
        return tuple(len(classes) for classes in self.session_classes)

    @property
    def curve(self) -> tuple[Scores, ...]:
        """Acc, base, novel and HM after each session, the base first."""
        return metrics.curve(self.accuracy, self.sizes)

    @property
    def last(self) -> Scores:
        """Acc, base, novel and HM after the last session learned."""
        return metrics.last(self.accuracy, self.sizes)

    @property
    def acc(self) -> float:
        """Class-wise accuracy over everything seen, after the last session learned."""
        value = self.last.acc
        if value is None:
            raise ValueError("there was no base session and no session has been learned yet, so there is no accuracy")
        return value

    @property
    def base_acc(self) -> float | None:
        """Accuracy of the base classes after the last session learned; None without a base session."""
        return self.last.base

    @property
    def novel_acc(self) -> float | None:
        """Accuracy of the novel classes after the last session learned; None before the first."""
        return self.last.novel

    @property
    def hm(self) -> float | None:
        """Harmonic mean of base and novel accuracy; None before the first novel session."""
        return self.last.hm

    @property
    def average(self) -> float:
        """Mean of Acc over the sessions, the base included."""
        return metrics.average(self.accuracy, self.sizes)

    @property
    def forgetting(self) -> float | None:
        """Class-weighted drop from the best earlier accuracy; None before the first novel session."""
        return metrics.forgetting(self.accuracy, self.sizes)

    @property
    def a_last(self) -> float:
        """Accuracy over the test images of all classes met, after the last session learned."""
        return _right_share(self.confusion[-1])

    @property
    def a_avg(self) -> float:
        """Mean of ``a_last`` over the ends of sessions after the base; that of the base if there is no other."""
        ends = [_right_share(counts) for counts in self.confusion[1:]] or [_right_share(self.confusion[0])]
        return math.fsum(ends) / len(ends)

    @property
    def a_auc(self) -> float | None:
        """Mean accuracy over the tests in the middle of sessions; None if there were none."""
        return None if self.anytime is None else self.anytime.area

    @property
    def worst_class(self) -> float:
        """The lowest accuracy of a class, after the last session learned."""
        return min(value for value in self.class_accuracy[-1] if value is not None)

    @property
    def class_forgetting(self) -> float | None:
        """Mean drop of each class from its best earlier test, at the end of a session or in the middle of one."""
        tests = () if self.anytime is None else self.anytime.class_accuracy
        earlier = tests[:-1] if tests[-1:] == self.class_accuracy[-1:] else tests  # that one was after the last image
        return metrics.class_forgetting([*self.class_accuracy[:-1], *earlier, self.class_accuracy[-1]])

    def to_json(self) -> dict[str, JSON]:
        """The result as a new JSON object; ``anytime`` only if there were such tests, ``scoring`` beyond the first."""
        values = {
            field.name: _plain(getattr(self, field.name)) for field in fields(self) if field.name not in _OPTIONAL
        }
        later = {"scoring": self.scoring} if self.scoring > 1 else {}
        tests = {} if self.anytime is None else {"anytime": _plain(asdict(self.anytime))}
        return {**values, **tests, **later}

    @classmethod
    def from_json(cls, value: JSON) -> Self:
        """The result from its JSON object; errors name the field."""
        if not isinstance(value, dict):
            raise InvalidResultError(f"a result is a JSON object, got {type(value).__name__}")
        if "format" in value:  # first, because another version may have other fields
            _known_format(value["format"], "format")
        names = {field.name for field in fields(cls)}
        if missing := sorted(names - _OPTIONAL - value.keys()):
            raise InvalidResultError(f"missing field {', '.join(missing)}; is this a result of `nocl run`?")
        if unknown := sorted(value.keys() - names):
            raise InvalidResultError(f"unknown field {', '.join(unknown)}; format {FORMAT} has no such field")
        arguments: dict[str, Any] = dict(value)
        return cls(**arguments)

    def save(self, path: str | Path) -> None:
        """Write the JSON file whole or not at all."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file; errors name the file and the field."""
        try:
            return cls.from_json(json.loads(Path(path).read_text("utf-8"), parse_constant=_refuse_constant))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such result file") from None
        except InvalidResultError as error:
            raise InvalidResultError(f"{path}: {error}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InvalidResultError(f"{path}: not a whole JSON file ({error})") from error


def _check_shapes(result: RunResult) -> None:
    sessions, rows = len(result.session_classes), len(result.accuracy)
    flat = [label for classes in result.session_classes for label in classes]
    if not flat:
        raise InvalidResultError("session_classes: a result needs at least one class")
    if len(set(flat)) < len(flat):
        raise InvalidResultError("session_classes: a class appears twice")
    if not 1 <= rows <= sessions:
        raise InvalidResultError(f"accuracy: {rows} rows for {sessions} sessions; one row per session learned")
    if result.finished and rows < sessions:
        raise InvalidResultError(f"finished: true, but accuracy has {rows} rows for {sessions} sessions")
    for name in ("class_accuracy", "confusion", "seconds", "test_seconds"):
        if len(getattr(result, name)) != rows:
            raise InvalidResultError(f"{name}: {len(getattr(result, name))} entries, but accuracy has {rows} rows")
    for name, width in (("accuracy", sessions), ("class_accuracy", len(flat))):
        for t, row in enumerate(getattr(result, name)):
            if len(row) != width:
                raise InvalidResultError(f"{name}[{t}]: {len(row)} columns, should be {width}")


def _check_seen(result: RunResult) -> None:
    """Check that seen classes have an accuracy and others None, and that both matrices agree."""
    for t, (row, class_row) in enumerate(zip(result.accuracy, result.class_accuracy)):
        for s, value in enumerate(row):
            if (value is None) != (s > t or not result.sizes[s]):
                raise InvalidResultError(
                    f"accuracy[{t}][{s}]: {value}, but None is for sessions not yet seen or without new classes, and "
                    "only them"
                )
        try:
            means = metrics.session_means(class_row, result.sizes)
        except ValueError as error:
            raise InvalidResultError(f"class_accuracy[{t}]: {error}") from None
        for s, (value, mean) in enumerate(zip(row, means)):
            if (value is None) != (mean is None) or (
                value is not None and mean is not None and abs(value - mean) > 1e-6
            ):
                raise InvalidResultError(f"accuracy[{t}][{s}]: {value}, but the mean of class_accuracy is {mean}")


def _check_anytime(result: RunResult) -> None:
    tests = result.anytime
    if tests is None:
        return
    if len({len(tests.images), len(tests.accuracy), len(tests.class_accuracy)}) > 1:
        raise InvalidResultError("anytime: images, accuracy and class_accuracy must have one entry per test")
    if tests.every < 1 or list(tests.images) != sorted(set(tests.images)):
        raise InvalidResultError("anytime: every must be 1 or more, and images must rise from test to test")
    width = sum(result.sizes)
    if any(value is None for value in tests.accuracy) or any(len(row) != width for row in tests.class_accuracy):
        raise InvalidResultError(
            f"anytime: every test needs an accuracy, and a value or null for each of {width} classes"
        )


def _right_share(counts: Mapping[str, int]) -> float:
    return (counts["base_right"] + counts["novel_right"]) / max(sum(counts.values()), 1)


# Readers: each returns a checked copy of the value, or raises an error that names the field.


def _fail(where: str, wanted: str, value: object) -> InvalidResultError:
    return InvalidResultError(f"{where}: should be {wanted}, got {value!r:.80}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _fail(where, "a text", value)
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _fail(where, "true or false", value)
    return value


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _fail(where, "a whole number", value)
    return value


def _known_format(value: object, where: str) -> int:
    if _whole(value, where) != FORMAT:
        raise InvalidResultError(
            f"{where}: version {value} is not known, nocl {__version__} reads version {FORMAT}; "
            "use the nocl that wrote the file, or run again"
        )
    return FORMAT


def _count(value: object, where: str) -> int:
    if _whole(value, where) < 0:
        raise _fail(where, "at least 0", value)
    return _whole(value, where)


def _optional_count(value: object, where: str) -> int | None:
    return None if value is None else _count(value, where)


def _duration(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise _fail(where, "a number of seconds", value)
    return float(value)


def _share(value: object, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _fail(where, "an accuracy from 0 to 1 or null", value)
    return float(value)


def _each(read: Callable[[object, str], Any], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _fail(where, "a list", value)
    return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))


def _named(read: Callable[[object, str], Any], names: tuple[str, ...], value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise _fail(where, f"an object with exactly {', '.join(names)}", value)
    return {name: read(value[name], f"{where}.{name}") for name in names}


def _object(value: object, where: str) -> dict[str, JSON]:
    if not isinstance(value, Mapping):
        raise _fail(where, "an object", value)
    for key in value:
        if not isinstance(key, str):
            raise _fail(where, "an object with text keys", key)
    return {key: _json(item, f"{where}.{key}") for key, item in value.items()}


def _json(value: object, where: str) -> JSON:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _fail(where, "a finite number (JSON has no NaN or infinity)", value)
        return value
    if isinstance(value, list):
        return [_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _object(value, where)
    raise _fail(where, f"a JSON value, not {type(value).__name__}", value)


def _anytime(value: object, where: str) -> Anytime | None:
    if value is None or isinstance(value, Anytime):
        return value
    names = tuple(field.name for field in fields(Anytime))
    given = _named(lambda item, _: item, names, value, where)
    return Anytime(
        _count(given["every"], f"{where}.every"),
        _each(_count, given["images"], f"{where}.images"),
        _each(_share, given["accuracy"], f"{where}.accuracy"),
        _rows(given["class_accuracy"], f"{where}.class_accuracy"),
    )


_rows = partial(_each, partial(_each, _share))

_READERS: dict[str, Callable[[object, str], Any]] = {
    "format": _known_format,
    "method": _text,
    "params": _object,
    "tags": partial(_named, _flag, TAGS),
    "stream": _object,
    "seed": _whole,
    "session_classes": partial(_each, partial(_each, _whole)),
    "accuracy": _rows,
    "class_accuracy": _rows,
    "confusion": partial(_each, partial(_named, _count, CONFUSION)),
    "seconds": partial(_each, _duration),
    "test_seconds": partial(_each, _duration),
    "peak_memory": _optional_count,
    "state_bytes": partial(_named, _count, STATE),
    "base": _object,
    "environment": _object,
    "log": _object,
    "finished": _flag,
    "anytime": _anytime,
    "scoring": _whole,
}


def _plain(value: Any) -> JSON:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    plain: JSON = value
    return plain


def _refuse_constant(name: str) -> None:
    raise InvalidResultError(f"contains {name}, which is not a JSON number")


__all__ = ["FORMAT", "InvalidResultError", "RunResult", "environment", "peak_memory"]
