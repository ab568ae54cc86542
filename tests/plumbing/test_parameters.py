"""Parameters: found along the class hierarchy, limits declared in the signature, refused in one way."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

import numpy as np
import pytest

from nocl.learner import FrozenLearner, Learner
from nocl.methods import METHODS
from nocl.plumbing.parameters import Count, Parameter, Positive, Range, check_values, parameters_of
from nocl.plumbing.registry import UnknownNameError

LIMITED = [
    (name, parameter) for name, cls in METHODS.items() for parameter in parameters_of(cls).values() if parameter.limits
]


class Shared(TypedDict, total=False):
    """What is handed on."""

    seed: int


class Root:
    """Declares what all have."""

    def __init__(self, *, seed: Annotated[int, Range(0)] = 0, hidden: int = 1) -> None:
        self.seed, self.hidden = seed, hidden


class Middle(Root):
    """Hands on one name, and fixes the other."""

    def __init__(self, *, kind: Literal["a", "b"] = "a", **shared: Unpack[Shared]) -> None:
        super().__init__(hidden=7, **shared)
        self.kind = kind


class Leaf(Middle):
    """Overrides a default and hands on everything else."""

    def __init__(self, *, rate: Positive | None = None, kind: Literal["a", "b"] = "b", **rest: Any) -> None:
        super().__init__(kind=kind, **rest)
        self.rate = rate


class Silent(Leaf):
    """Has no constructor of its own."""


def test_parameters_are_found_along_the_hierarchy() -> None:
    assert list(parameters_of(Middle)) == ["kind", "seed"]  # hidden is not handed on
    assert list(parameters_of(Leaf)) == list(parameters_of(Silent)) == ["rate", "kind", "seed"]
    assert parameters_of(Leaf)["kind"].default == "b"
    assert parameters_of(Leaf)["seed"].default == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0.0}, "Leaf: rate must be above 0, or None, not 0.0"),
        ({"rate": math.nan}, "Leaf: rate must be above 0, or None, not nan"),
        ({"rate": "fast"}, "Leaf: rate must be above 0, or None, not 'fast'"),
        ({"kind": "c"}, "Leaf: kind must be one of a, b, not 'c'"),
        ({"seed": 1.5}, "Leaf: seed must be a whole number, 0 or more, not 1.5"),
        ({"seeed": 1}, "unknown parameter of Leaf 'seeed'; did you mean 'seed'"),
    ],
)
def test_values_outside_the_limits_are_refused_in_one_way(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_values(Leaf, values)


def test_values_within_the_limits_are_taken() -> None:
    check_values(Leaf, {"rate": None, "kind": "a", "seed": 3})
    check_values(Leaf, {"rate": 1})
    check_values(Leaf, {"rate": np.float32(0.5), "seed": np.int64(3)})


class Typed:
    """Declares types alone, and some that are not checked."""

    def __init__(
        self, *, n: int = 1, rate: float | None = 1.0, on: bool = True, name: str = "a", late: float = None,  # type: ignore[assignment]  # noqa: RUF013
        steps: Sequence[int] | Literal["auto"] = "auto", more: Mapping[str, int] | None = None,
        path: Path | str = "", anything: Any = None, call: Callable[[int], str] = chr, plain=0,  # type: ignore[no-untyped-def]
    ) -> None: ...  # fmt: skip


@pytest.mark.parametrize(
    ("name", "taken", "refused", "words"),
    [
        ("n", [3, np.int64(3)], [True, 1.0, "3", None], "a whole number"),
        ("rate", [3, 0.5, np.float32(1), np.int8(1), None], [False, "0.5", [1.0]], "a number, or None"),
        ("late", [None, 2], ["x"], "a number, or None"),
        ("on", [True, np.True_], [1, "true", None], "true or false"),
        ("name", ["x", np.str_("x")], [1, None, b"x"], "text"),
        (
            "steps", ["auto", [1, 2], (1, -2), [], np.array([1, 2])], ["last", 2, [1.5], [True], None, np.array(2)],
            "a list of whole numbers or auto",
        ),
        ("more", [{}, {"a": 1}, None], [3, [1], "a"], "a dictionary, or None"),
        ("path", [Path("a"), 3], [], ""),
        ("anything", [object()], [], ""),
        ("call", [ord, 3], [], ""),
        ("plain", ["text", None], [], ""),
    ],
)  # fmt: skip
def test_plain_types_are_limits(name: str, taken: list[object], refused: list[object], words: str) -> None:
    parameter = parameters_of(Typed)[name]
    assert parameter.limits == words
    assert all(parameter.allows(value) for value in taken)
    assert not any(parameter.allows(value) for value in refused)


class Explicit(FrozenLearner):
    """A user's method in the long style: every parameter written out, no limits."""

    def __init__(self, *, power: float = 1.0, backbone: str = "tiny_resnet18", seed: int = 0) -> None:
        super().__init__(backbone=backbone, seed=seed)
        self.power = power


def test_a_method_in_the_long_style_keeps_working() -> None:
    learner = Explicit(power=-3.0)
    assert learner.get_params() == {"power": -3.0, "backbone": "tiny_resnet18", "seed": 0}
    assert learner.clone(power=2.0).power == 2.0
    with pytest.raises(UnknownNameError, match="parameter of Explicit 'weights'"):
        Explicit(weights=None)  # type: ignore[call-arg]


def outside(parameter: Parameter) -> list[object]:
    """Values that the limits of a parameter exclude."""
    if parameter.choices:
        return ["no such choice"]
    if parameter.kinds:
        return [object(), 1.5j, *([] if parameter.optional else [None]), *([] if bool in parameter.kinds else [True])]
    assert parameter.range is not None
    low, high = parameter.range.low, parameter.range.high
    values: list[object] = [low - 1, *([low] if parameter.range.above else []), "text", math.nan]
    if math.isfinite(high):
        values += [high + 1, *([high] if parameter.range.below else [])]
    return [*values, *([] if parameter.optional else [None]), *([low + 0.5] if parameter.whole else [])]


@pytest.mark.parametrize(("name", "parameter"), LIMITED, ids=[f"{name}-{p.name}" for name, p in LIMITED])
def test_every_declared_range_is_refused_outside(name: str, parameter: Parameter) -> None:
    for value in outside(parameter):
        with pytest.raises(ValueError) as refused:
            METHODS[name](**{parameter.name: value})  # type: ignore[arg-type]
        words = f"{METHODS[name].__name__}: {parameter.name} must be {parameter.limits}, not {value!r}"
        assert str(refused.value) == words


@pytest.mark.parametrize("name", METHODS)
def test_every_number_has_a_range_and_every_default_lies_within_it(name: str) -> None:
    for parameter in parameters_of(METHODS[name]).values():
        assert parameter.allows(parameter.default), parameter
        number = isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
        assert parameter.limits or not number or parameter.name == "seed", parameter


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_lies_within_the_limits(name: str) -> None:
    for settings in (*METHODS[name].presets.values(), METHODS[name].check_params):
        check_values(METHODS[name], settings)
        METHODS[name].base_recipe.with_changes(settings.get("recipe") or {})  # type: ignore[arg-type]


def documented(cls: type[Learner]) -> dict[str, str]:
    """The entries of the Parameters section of a class docstring."""
    section = (cls.__doc__ or "").partition("Parameters\n    ----------\n")[2]
    entries = re.findall(r"^ {4}(\S+)\n((?: {8}.*\n)+)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


@pytest.mark.parametrize("cls", [*METHODS.values(), Learner, FrozenLearner])
def test_every_parameter_is_documented_where_the_class_is(cls: type[Learner]) -> None:
    entries = documented(cls)
    for parameter in parameters_of(cls).values():
        text = entries.get(parameter.name)
        if text is None:
            assert f"``{parameter.name}``" in entries["**common"], parameter.name
            continue
        words = [str(choice) for choice in parameter.choices] or [str(parameter.range or "")]
        assert all(word in text for word in words), f"{parameter.name} is {parameter.limits}: {text}"


def test_whole_numbers_and_counts_say_so() -> None:
    assert str(Range(0, 1, above=True)) == "above 0 to 1"
    assert Parameter("n", range=Range(1), whole=True).limits == "a whole number, 1 or more"
    assert Count.__metadata__[0] == Range(1)  # type: ignore[attr-defined]
