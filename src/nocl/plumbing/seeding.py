"""Random numbers: generators made from a seed and names, and a scope that restores the global generator."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator whose state depends on all the parts.

    >>> a, b = generator(0, "session", 1), generator(0, "session", 2)
    >>> bool(torch.rand(1, generator=a) == torch.rand(1, generator=b))
    False
    """
    return torch.Generator().manual_seed(seed_from(*parts))


def seed_from(*parts: int | str) -> int:
    """One 63-bit seed made of several values; the same on every machine and Python version."""
    digest = hashlib.sha256("\x1f".join(f"{type(p).__name__}:{p}" for p in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def scoped(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the ``with`` block and restore them afterwards.

    For code that cannot take a generator: module constructors and kornia's augmentations.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
