"""The keyword parameters of a class, with their limits, as its constructors declare them.

A constructor declares its own parameters and passes the others to its base class:

    class Common(TypedDict, total=False):
        seed: int

    def __init__(self, *, power: Annotated[float, Range(0, 2)] = 0.5, **common: Unpack[Common]) -> None:
        super().__init__(**common)

:func:`parameters_of` collects them along the class hierarchy. A ``Range`` in the annotation, the values of a
``Literal``, and plain types such as ``int`` or ``str`` are limits; :func:`check_values` refuses a value outside them.
Other annotations have no limits. A bool is not a number.
"""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from nocl.plumbing.registry import UnknownNameError, unknown


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, without ``low`` itself if ``above``, without ``high`` itself if ``below``.

    >>> str(Range(0, 1)), str(Range(0, above=True)), str(Range(0, 2, below=True))
    ('from 0 to 1', 'above 0', 'from 0 to below 2')
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        reached = self.low < value if self.above else self.low <= value
        return reached and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        return f"{start} to {'below ' if self.below else ''}{self.high:g}"


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
_WORDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text",
    Mapping: "a dictionary", Sequence: "a list of whole numbers",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One keyword parameter: its default and what values it may have."""

    name: str
    default: Any = inspect.Parameter.empty
    choices: tuple[Any, ...] = ()
    range: Range | None = None
    whole: bool = False  # an integer
    optional: bool = False  # None is allowed
    kinds: tuple[Any, ...] = ()  # keys of _WORDS, without range and choices; empty: any value
    named: tuple[Any, ...] = ()  # values allowed beside those kinds

    @property
    def limits(self) -> str:
        """The allowed values in words; empty if there are no limits."""
        if self.choices:
            words = f"one of {', '.join(map(str, self.choices))}"
        elif self.range is not None:
            words = f"a whole number, {self.range}" if self.whole else str(self.range)
        elif self.kinds:
            words = " or ".join([*(_WORDS[kind] for kind in self.kinds), *map(str, self.named)])
        else:
            return ""
        return f"{words}, or None" if self.optional else words

    def allows(self, value: object) -> bool:
        """True if the value is within the limits."""
        if not self.limits or (value is None and self.optional):
            return True
        if self.choices:
            return _is_among(value, self.choices)
        if self.range is not None:
            return _is(int if self.whole else float, value) and float(value) in self.range  # type: ignore[arg-type]
        return _is_among(value, self.named) or any(_is(kind, value) for kind in self.kinds)


def parameters_of(cls: type) -> dict[str, Parameter]:
    """The keyword parameters that build ``cls``: its own, then those that it passes to its base classes."""
    found: dict[str, Parameter] = {}
    allowed: set[str] | None = None  # None: every parameter of the base class
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        hints = _hints(base.__init__)  # type: ignore[misc]
        rest = None
        for parameter in list(inspect.signature(base.__init__).parameters.values())[1:]:  # type: ignore[misc]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                rest = parameter.name
            elif parameter.name not in found and (allowed is None or parameter.name in allowed):
                found[parameter.name] = _parameter(parameter.name, parameter.default, hints.get(parameter.name))
        if rest is None:
            return found
        handed = get_args(hints.get(rest))  # of Unpack[a TypedDict]; nothing is known of a bare **rest
        names = set(get_type_hints(handed[0])) if handed else None
        allowed = names if allowed is None else allowed if names is None else allowed & names
    return found


def check_values(cls: type, values: Mapping[str, object]) -> None:
    """Refuse a parameter that ``cls`` does not have, and a value outside the declared limits."""
    declared = parameters_of(cls)
    for name, value in values.items():
        if name not in declared:
            raise UnknownNameError(unknown(name, declared, f"parameter of {cls.__name__}"))
        if not declared[name].allows(value):
            raise ValueError(f"{cls.__name__}: {name} must be {declared[name].limits}, not {value!r}")


def plain(value: Any) -> Any:
    """The value with Python's numbers and texts in place of numpy's, which JSON does not know.

    >>> plain({"prior": np.float32(1), "recipe": {"steps": (np.int64(2), 3)}})
    {'prior': 1.0, 'recipe': {'steps': (2, 3)}}
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # names that only a type checker imports: a user's class may have them, and then has no limits
        return {}


def _parameter(name: str, default: Any, hint: Any) -> Parameter:
    parts = list(_parts(hint))
    ranges = [part for part in parts if isinstance(part, Range)]
    literal = [part for part in parts if get_origin(part) is Literal]
    values = tuple(value for part in literal for value in get_args(part))
    kinds = tuple(_kind(part) for part in parts if part not in literal and part is not NoneType)
    optional, whole = NoneType in parts or default is None, int in parts and float not in parts
    if ranges or None in kinds:
        return Parameter(name, default, (), ranges[0] if ranges else None, whole, optional)
    if not kinds:  # nothing but the values named is allowed
        return Parameter(name, default, values, None, whole, optional)
    return Parameter(name, default, (), None, whole, optional, kinds, values)


def _kind(hint: Any) -> Any:
    """The key of _WORDS for a type hint; None if there is none."""
    origin = get_origin(hint)
    if origin in (Sequence, list, tuple):
        return Sequence if all(item in (int, ...) for item in get_args(hint)) else None
    if origin in (Mapping, dict):
        return Mapping
    return hint if hint in (bool, int, float, str) else None


def _is(kind: Any, value: object) -> bool:
    """True if the value is of a kind in _WORDS; numpy's numbers are numbers."""
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is Sequence:
        rows = value.tolist() if isinstance(value, np.ndarray) else value
        return isinstance(rows, Sequence) and not isinstance(rows, str) and all(_is(int, row) for row in rows)
    numbers: dict[Any, Any] = {int: Integral, float: Real}
    return isinstance(value, numbers.get(kind, kind)) and not isinstance(value, bool)


def _is_among(value: object, choices: tuple[Any, ...]) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _parts(hint: Any) -> Iterator[Any]:
    """The parts of a type hint: members of unions, type and metadata of Annotated."""
    if get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _parts(member)
    elif get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        yield from _parts(kind)
        yield from notes
    else:
        yield hint
