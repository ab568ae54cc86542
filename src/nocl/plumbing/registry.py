"""Find objects by name: a key of a table, or a user's own as ``module:name``. An unknown name gets a helpful error.

Only this module imports what a name says. While a file is read that is not trusted, it imports nothing
(:func:`importing_only`), wherever in the file the name is.
"""

import difflib
import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_allowed: ContextVar[frozenset[str] | None] = ContextVar("_allowed", default=None)  # None: everything


class UnknownNameError(ValueError):
    """An unknown name; the message lists the valid ones and the most similar one."""


class UntrustedNameError(ValueError):
    """A file that is not trusted names code to import."""


@contextmanager
def importing_only(names: Collection[str]) -> Iterator[None]:
    """While the block runs, :func:`by_name` imports these names and no others."""
    before = _allowed.set(frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(before)


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
    allowed = _allowed.get()
    if allowed is not None and name not in allowed:
        raise UntrustedNameError(f"{kind} {name!r} is not trusted and was not imported")
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
