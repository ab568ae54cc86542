"""Copying models, learning in parts, and merging models that were copied from one.

Each model has a history: how many images of each class were learned since which file. From it a merge knows what two
models have in common, so that nothing counts twice. It has ids and counts, never images.
"""

import copy
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from nocl.app.calibration import Calibration
from nocl.app.naming import label_of
from nocl.learner import Learner


class Sharing:
    """The part of a classifier that copies, merges and keeps the history."""

    _learner: Learner | None
    _names: dict[int, str]
    _counts: Counter[str]
    _calibration: Calibration
    history_: list[dict[str, Any]]
    _entry: dict[str, Any] | None  # of the history, while nothing was saved since it began

    if TYPE_CHECKING:  # given by Classifier

        @property
        def learner_(self) -> Learner: ...

        @property
        def class_names(self) -> list[str]: ...

        @property
        def counts_(self) -> dict[str, int]: ...

        def forget(self, name: str, *, exact: bool = False) -> Self: ...

    def merge(self, other: Self, common: Self | None = None) -> Self:
        """Add what another model with the same network has learned from other images, exactly.

        If both were copied from one model, what that model knew must count once. This works by itself for classes that
        only one of the two has learned since; for classes that both have learned, give that model as ``common``.
        """
        if not isinstance(other, Sharing):
            raise TypeError(f"merge needs a Classifier, not {other!r}; read a file with Classifier.load first")
        theirs = other.copy()
        self.learner_._check_mergeable(theirs.learner_)
        shared = self._ids() & other._ids()
        if common is not None and common._ids() != shared:
            raise ValueError("common is not the model that both were copied from; it must be the last they share")
        if common is not None:
            theirs._take_away(common)
        elif shared:
            self._drop_repeated(theirs, shared)
        self._names |= theirs._names
        self.learner_.merge(theirs.learner_)
        self._drop_calibration(theirs._counts)
        self._counts += theirs._counts
        self._join_history(other)
        return self

    def copy(self) -> Self:
        """An independent copy that shares the network; the method must not train it."""
        copied = self.successor()
        copied._entry = self._entry = None  # from now on each has a history of its own
        return copied

    def successor(self) -> Self:
        """A copy that takes the place of this one, which must not learn any more: the history goes on in it."""
        copied = self._shell()
        copied._learner = self.learner_.copy_on_network()
        copied._names, copied._counts = dict(self._names), Counter(self._counts)
        copied.history_ = [{**entry, "added": dict(entry["added"])} for entry in self.history_]
        copied._entry = copied.history_[-1] if self._entry is not None else None
        return copied

    def _shell(self) -> Self:
        """Another object with the same attributes."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For pickling and ``copy.deepcopy``: a copy, so both begin a new entry of their history."""
        self._entry = None
        return self.__dict__.copy()

    def apart(self) -> Self:
        """An empty classifier on the same network, whose learning ``take_in`` adds to this one."""
        empty = self._shell()
        empty._learner = self.learner_.empty_copy()
        empty._names, empty._counts, empty.history_, empty._entry = {}, Counter(), [], None
        empty._calibration = Calibration(1.0)
        return empty

    def expect(self, names: Sequence[str]) -> None:
        """Give the classes that are new columns in this order; their images must follow at once (``take_in``)."""
        self._names |= {label_of(name): name for name in names}
        self.learner_.meet(label_of(name) for name in names)

    def take_in(self, part: Self, entry: str | None = None) -> None:
        """Add what a classifier made by ``apart`` has learned; ``entry`` is what ``next_entry`` was then."""
        self._names |= part._names
        self.learner_.merge(part.learner_)
        self._note(Counter(part.counts_), entry)

    def next_entry(self) -> str:
        """The id of the history's entry that the next lesson belongs to."""
        return secrets.token_hex(8) if self._entry is None else str(self._entry["id"])

    def _drop_calibration(self, added: Counter[str]) -> None:
        """Held-out images have calibrated the classes of their time: with the first new one they count no more."""
        if self._calibration.images and not set(added) <= set(self._counts):
            self._calibration = replace(self._calibration, images=0)

    def _note(self, added: Counter[str], entry: str | None = None) -> None:
        self._drop_calibration(added)
        wanted = entry or self.next_entry()
        if self._entry is None or self._entry["id"] != wanted:
            self._entry = {"id": wanted, "added": {}}
            self.history_.append(self._entry)
        for name, count in added.items():
            self._entry["added"][name] = self._entry["added"].get(name, 0) + count
        self._counts += added

    def _ids(self) -> set[str]:
        return {entry["id"] for entry in self.history_}

    def _join_history(self, other: Self) -> None:
        ours = {entry["id"]: entry for entry in self.history_}
        for entry in other.history_:
            if entry["id"] in ours:
                ours[entry["id"]]["added"] |= entry["added"]
            else:
                self.history_.append(copy.deepcopy(entry))
        self._entry = None

    def _take_away(self, common: Self) -> None:
        """Remove everything that ``common`` had learned."""
        before = common.copy()
        for name in set(before.class_names) - set(self.class_names):
            before.forget(name)
        self.learner_.subtract(before.learner_)
        self._counts -= before._counts  # a Counter drops what reaches zero
        for name in self.class_names:
            if not self._counts[name]:
                self.forget(name)

    def _drop_repeated(self, theirs: Self, shared: set[str]) -> None:
        """Of two copies of one model, keep each old class in the one that has seen all of its images."""
        past = _counted(self, shared) | _counted(theirs, shared)  # the larger: one may have forgotten a class
        mine_grew = {name for name in past if self._counts[name] > past[name]}
        theirs_grew = {name for name in past if theirs._counts[name] > past[name]}
        both = sorted(mine_grew & theirs_grew)
        if both or not self.learner_.forgets_exactly:
            why = f"both went on learning {', '.join(both[:5])}" if both else "they share one covariance"
            raise ValueError(
                f"the two models come from one and {why}: give that model as common (--base), so that it counts once"
            )
        for name in past:
            loser = self if name in theirs_grew else theirs
            if name in self.counts_ and name in theirs.counts_:
                loser.forget(name)


def _counted(model: Sharing, ids: set[str]) -> Counter[str]:
    return sum((Counter(e["added"]) for e in model.history_ if e["id"] in ids), Counter[str]())


def checked_history(history: list[Any]) -> list[dict[str, Any]]:
    for entry in history:
        added = entry["added"]
        if not isinstance(entry["id"], str) or not all(
            isinstance(name, str) and isinstance(count, int) for name, count in added.items()
        ):
            raise ValueError("an entry of the history is not an id with counts")
    return history
