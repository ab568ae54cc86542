"""The order in which training images arrive: one plan for each kind of stream, as positions in the training set.

A plan decides which images are in which session; it uses labels only. ``nocl.streams`` shuffles the images of a
session. Definitions, with pictures: docs/streams.md.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from nocl.plumbing.registry import UnknownNameError, unknown

Positions = NDArray[np.int64]


class PlanError(ValueError):
    """A stream that is badly written, or for which the data set is too small."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A kind of stream with its parameters; ``base`` percent of the classes come first, as the base session.

    With ``base=0`` there is no base session: for networks that were trained elsewhere, and for stored features.
    """

    boundaries: ClassVar[bool] = True  # False: the learner is not told when a session ends
    in_order: ClassVar[bool] = False  # True: images come one at a time, in the order of the plan

    base: int = 60

    def __post_init__(self) -> None:
        _check(0 <= self.base < 100, "base", self.base, "a percentage from 0 to 99")

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        """Positions of each session; ``rows`` holds the positions of each class after the base session."""
        raise NotImplementedError

    def describe(self) -> str:
        """The text that :func:`parse_plan` reads."""
        name = next(name for name, kind in STREAMS.items() if kind is type(self))
        return f"{name}:{','.join(f'{field.name}={getattr(self, field.name)}' for field in fields(self))}"


@dataclass(frozen=True, kw_only=True)
class Disjoint(Plan):
    """Every class is in one session; each session has equally many, or one more than another."""

    sessions: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.sessions >= 1, "sessions", self.sessions, "1 or more")

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        _check(self.sessions <= len(rows), "sessions", self.sessions, f"at most the {len(rows)} classes there are")
        return _placed(rows, _dealt(_shuffled(list(rows), draw), self.sessions), (), self.sessions, 0.0, draw)


@dataclass(frozen=True, kw_only=True)
class Blurry(Plan):
    """i-Blurry (Koh et al., ICLR 2022): a share of the classes is in one session only, the others are blurred.

    ``disjoint`` is that share. Of a blurred class ``blur`` of the images move to other sessions, equally likely.
    """

    sessions: int = 5
    disjoint: float = 0.5
    blur: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.sessions >= 2, "sessions", self.sessions, "2 or more: images move between sessions")
        _check_share("disjoint", self.disjoint)
        _check_share("blur", self.blur)

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        return self.place(rows, draw, _dealt)

    def place(
        self,
        rows: Mapping[int, Positions],
        draw: torch.Generator,
        deal: Callable[[Sequence[int], int], dict[int, int]],
    ) -> list[Positions]:
        """Assign both kinds of classes to main sessions by ``deal``, then move images of the blurred ones."""
        classes = _shuffled(list(rows), draw)
        cut = round(self.disjoint * len(classes))
        home = deal(classes[:cut], self.sessions) | deal(classes[cut:], self.sessions)
        return _placed(rows, home, classes[cut:], self.sessions, self.blur, draw)


@dataclass(frozen=True, kw_only=True)
class SiBlurry(Blurry):
    """Si-Blurry (Moon et al., ICCV 2023): as i-Blurry, but how many classes a session has is random.

    The classes of each kind are divided at ``sessions - 1`` random places; a session may have none.
    """

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        def deal(classes: Sequence[int], sessions: int) -> dict[int, int]:
            cuts = torch.randint(len(classes) + 1, (sessions - 1,), generator=draw).sort().values.numpy()
            return dict(zip(classes, np.searchsorted(cuts, np.arange(len(classes)), side="right").tolist()))

        return self.place(rows, draw, deal)


@dataclass(frozen=True, kw_only=True)
class LongTailed(Blurry):
    """Unequal classes: of n the class of rank k keeps n r^(k / (K - 1)) images; ranks are random.

    ``ratio`` is r, from the rarest class to the most frequent. With ``disjoint`` 1 sessions share no class.
    """

    ratio: float = 0.01
    disjoint: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(0 < self.ratio <= 1, "ratio", self.ratio, "above 0 and at most 1")

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        most = max(len(positions) for positions in rows.values())
        counts = tail_counts(most, len(rows), self.ratio)
        kept = dict(zip(_shuffled(list(rows), draw), counts))
        return super().arrange({label: _some(rows[label], kept[label], draw) for label in rows}, draw)


@dataclass(frozen=True, kw_only=True)
class Repeating(Plan):
    """Classes return with new images (after Hemati et al., 2023); all sessions have the same number of images.

    A class not met yet enters a session with probability ``p_first``, a met one returns with ``p_repeat``; they share
    the session equally. A class without images left takes no part. If the drawn classes have too few images for the
    session, more classes are drawn, so that in the end every image has been used.
    """

    sessions: int = 10
    p_first: float = 0.3
    p_repeat: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.sessions >= 1, "sessions", self.sessions, "1 or more")
        _check_share("p_first", self.p_first)
        _check_share("p_repeat", self.p_repeat)

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        left = {label: _some(positions, len(positions), draw).tolist() for label, positions in rows.items()}
        total, met, sessions = sum(map(len, left.values())), set[int](), []
        for index in range(self.sessions):
            size = (index + 1) * total // self.sessions - index * total // self.sessions
            chance = {label: self.p_repeat if label in met else self.p_first for label in left if left[label]}
            drawn = torch.rand(len(chance), generator=draw).tolist()
            order = _shuffled(list(chance), draw)
            present = [label for (label, p), value in zip(chance.items(), drawn) if value < p]
            for label in order:  # more classes, until there are enough images
                if sum(len(left[one]) for one in present) >= size:
                    break
                if label not in present:
                    present.append(label)
            shares = _equal_shares([len(left[label]) for label in present], size)
            met |= {label for label, share in zip(present, shares) if share}
            taken = sorted(left[label].pop() for label, share in zip(present, shares) for _ in range(share))
            sessions.append(np.array(taken, dtype=np.int64))
        return sessions


@dataclass(frozen=True, kw_only=True)
class Shuffled(Plan):
    """All images in random order, without sessions: the easiest stream."""

    boundaries: ClassVar[bool] = False

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        return [np.sort(np.concatenate(list(rows.values())))]


@dataclass(frozen=True, kw_only=True)
class Ordered(Plan):
    """Class after class, one image at a time, without sessions: the hardest stream."""

    boundaries: ClassVar[bool] = False
    in_order: ClassVar[bool] = True

    def arrange(self, rows: Mapping[int, Positions], draw: torch.Generator) -> list[Positions]:
        classes = _shuffled(list(rows), draw)
        return [np.concatenate([_some(rows[label], len(rows[label]), draw) for label in classes])]


STREAMS: dict[str, type[Plan]] = {
    "disjoint": Disjoint,
    "blurry": Blurry,
    "si_blurry": SiBlurry,
    "long_tailed": LongTailed,
    "repeating": Repeating,
    "shuffled": Shuffled,
    "ordered": Ordered,
}


def parse_plan(text: str) -> Plan:
    """A plan from its name and parameters.

    >>> parse_plan("si_blurry:disjoint=0.5,blur=0.1,base=0")
    SiBlurry(base=0, sessions=5, disjoint=0.5, blur=0.1)
    """
    name, _, rest = text.strip().partition(":")
    if name not in STREAMS:
        raise UnknownNameError(unknown(name, STREAMS, "stream"))
    kinds = {field.name: field.type for field in fields(STREAMS[name])}
    usual = {field.name: field.default for field in fields(STREAMS[name])}
    values: dict[str, int | float] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in kinds:
            raise UnknownNameError(unknown(key, kinds, f"parameter of stream {name}"))
        if key in values:
            raise PlanError(f"stream {text!r}: {key} is there twice; give it once")
        try:
            values[key] = int(value) if kinds[key] is int else float(value)
        except ValueError:
            wanted = "a whole number" if kinds[key] is int else "a number"
            raise PlanError(
                f"stream {text!r}: {key} must be {wanted}, not {value!r}, as in {name}:{key}={usual[key]}"
            ) from None
    return STREAMS[name](**values)  # type: ignore[arg-type]


def tail_counts(most: int, n_classes: int, ratio: float) -> list[int]:
    """Images of the classes of a long tail by rank, to the nearest whole number and at least one.

    >>> tail_counts(500, 3, 0.01)
    [500, 50, 5]
    """
    return [max(1, int(most * ratio ** (k / max(n_classes - 1, 1)) + 0.5)) for k in range(n_classes)]


def _dealt(classes: Sequence[int], sessions: int) -> dict[int, int]:
    """The session of each class; sessions have equally many classes, or one more than others."""
    return {label: index * sessions // len(classes) for index, label in enumerate(classes)}


def _placed(
    rows: Mapping[int, Positions],
    home: Mapping[int, int],
    blurred: Collection[int],
    sessions: int,
    blur: float,
    draw: torch.Generator,
) -> list[Positions]:
    """Put every image in the main session of its class, but round(blur n) of a blurred class in others."""
    parts: list[list[Positions]] = [[] for _ in range(sessions)]
    for label, main in home.items():
        session = np.full(len(rows[label]), main)
        if label in blurred:
            moved = _some(np.arange(len(session)), round(blur * len(session)), draw)
            step = torch.randint(1, sessions, (len(moved),), generator=draw).numpy()
            session[moved] = (main + step) % sessions
        for index, part in enumerate(parts):
            part.append(rows[label][session == index])
    return [np.sort(np.concatenate(part)) if part else np.zeros(0, np.int64) for part in parts]


def _equal_shares(available: Sequence[int], wanted: int) -> list[int]:
    """How many to take of each, as equally as possible, ``wanted`` in all.

    >>> _equal_shares([5, 1, 9], 8), _equal_shares([1, 1], 9)
    ([4, 1, 3], [1, 1])
    """
    shares = [0] * len(available)
    while wanted and (open_ := [i for i, n in enumerate(available) if shares[i] < n]):
        each, more = divmod(wanted, len(open_))
        for position, i in enumerate(open_):
            taken = min(each + (position < more), available[i] - shares[i])
            shares[i] += taken
            wanted -= taken
    return shares


def _shuffled(values: Sequence[int], draw: torch.Generator) -> list[int]:
    return [values[i] for i in torch.randperm(len(values), generator=draw).tolist()]


def _some(positions: Positions, n: int, draw: torch.Generator) -> Positions:
    """``n`` random positions, or all if there are fewer, in random order."""
    chosen: Positions = positions[torch.randperm(len(positions), generator=draw)[:n].numpy()]
    return chosen


def _check(holds: bool, name: str, value: float, wanted: str) -> None:
    if not holds:
        raise PlanError(f"stream: {name} must be {wanted}, not {value:g}")


def _check_share(name: str, value: float) -> None:
    _check(0 <= value <= 1, name, value, "a share from 0 to 1")
