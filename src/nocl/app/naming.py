"""Names of classes: what may be one, and the label that stands for it inside a learner.

Names are text. Whole and finite numbers are taken too and become the text they print as, so that ``[0, 1]`` teaches the
classes ``"0"`` and ``"1"``. Anything else is refused: its text would make a class that nobody meant.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Set
from numbers import Integral, Real

import numpy as np
from torch import Tensor

MAX_NAME = 200  # characters of a class name
_JOINERS = str.maketrans("", "", "\u200c\u200d")  # not printable alone, but part of words and of emoji


def label_of(name: str) -> int:
    """The label of a class name, the same in every model: 53 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 11


def check_name(name: object) -> str:
    """A class name that can be shown and stored: 1 to 200 printable characters, no space at either end."""
    if not isinstance(name, str):
        raise TypeError(f"a class name must be text, not {type(name).__name__}")
    if not name or len(name) > MAX_NAME:
        raise ValueError(f"a class name must have 1 to {MAX_NAME} characters, not {len(name)}")
    inside = name[1:-1].translate(_JOINERS)
    if name != name.strip() or not (name[0] + inside + name[-1]).isprintable():
        raise ValueError(f"class name {name!r} has spaces at an end or characters that cannot be shown")
    return name


def name_from(value: object) -> str:
    """The class name that a value stands for.

    >>> name_from("mug"), name_from(7), name_from(np.int64(7)), name_from(True)
    ('mug', '7', '7', 'True')
    """
    if isinstance(value, Tensor | np.generic) and value.ndim == 0:
        value = value.item()
    whole = isinstance(value, Integral)
    if not isinstance(value, str) and not whole and not (isinstance(value, Real) and math.isfinite(value)):
        raise TypeError(f"a class name must be text or a number, not {value!r}")
    return check_name(str(value))


def names_from(names: object, count: int) -> list[str]:
    """One class name for each of ``count`` images, from one for all of them or a sequence."""
    if isinstance(names, Tensor | np.ndarray):
        names = names.tolist()
    if isinstance(names, str):
        return [check_name(names)] * count
    if not isinstance(names, Iterable) or isinstance(names, bytes | bytearray | Set | Mapping):
        raise TypeError(f"names must be one class name or one for each image ('mug', ['mug', 'cup']), not {names!r}")
    found = [name_from(name) for name in names]
    if len(found) != count:
        raise ValueError(f"{count} images need {count} names, not {len(found)}")
    return found
