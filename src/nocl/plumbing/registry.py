"""Names to objects: a key of a literal table, or a user's own as ``module:name``. Wrong names get a helpful error."""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UnknownNameError(ValueError):
    """A name that is in no table; the message lists the valid ones and the nearest."""


def by_name(name: str, table: Mapping[str, T], kind: str) -> T:
    """The object a user means by ``name``.

    >>> by_name("nc", {"nm": 1}, "net")
    Traceback (most recent call last):
    nocl.plumbing.registry.UnknownNameError: unknown net 'nc'; did you mean 'nm'? Valid: nm, or your own as module:name
    """
    if name in table:
        return table[name]
    if ":" not in name:
        raise UnknownNameError(unknown(name, table, kind) + ", or your own as module:name")
    module_name, _, attribute = name.partition(":")
    try:
        found: T = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"{kind} {name!r}: {error}; is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise UnknownNameError(f"{kind} {name!r}: module {module_name} has no {attribute!r}") from error
    return found


def unknown(name: str, valid: Iterable[str], kind: str) -> str:
    """The sentence for a name that is not valid."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {kind} {name!r}{hint} Valid: {', '.join(names)}"
