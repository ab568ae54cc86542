"""Forgetting a class and merging two learners, for methods that learn statistics.

A method that learns nothing but the :class:`~nocl.stats.class_stats.ClassStats` named by ``statistics`` needs no code
of its own for this. A method that keeps more overrides ``mergeable``, ``forgettable``, ``forgets_exactly``,
``kept``, ``shrink``, ``absorb``, ``release`` and ``clear`` where they no longer hold.
"""

import copy
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from nocl.nets import Backbone
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import ClassStats

_KEPT = {
    "none": "mean",
    "diagonal": "mean and variances",
    "full": "mean and covariance",
    "shared": "mean, beside one covariance of all classes",
}


class UnsupportedError(NotImplementedError):
    """This method cannot do this."""


class Merging(nn.Module):
    """The part of a learner that removes classes and merges learners. The rest is in :class:`nocl.learner.Learner`."""

    statistics: ClassVar[tuple[str, ...]] = ()  # the attributes with ClassStats, if these hold all that is learned

    classes_: Tensor  # int64 [K], first-seen order = columns of decision_function
    n_base_: Tensor  # int64 [], how many of them the base session brought
    network: Backbone
    _column: dict[int, int]

    if TYPE_CHECKING:  # given by Learner

        @property
        def device(self) -> torch.device: ...
        def columns(self, y: Tensor) -> Tensor: ...
        def get_params(self) -> dict[str, JSON]: ...
        def network_state_names(self) -> set[str]: ...

    @property
    def mergeable(self) -> bool:
        """True if only statistics are learned, so that learners can be merged and classes removed."""
        return bool(self.statistics)

    @property
    def forgettable(self) -> bool:
        """True if ``forget()`` works. Shared statistics may keep traces: see ``forgets_exactly``."""
        return self.mergeable

    @property
    def forgets_exactly(self) -> bool:
        """True if nothing of a forgotten class stays: each class has its own statistics and nothing is shared."""
        return self.mergeable and all(stats.spread != "shared" for stats in self._class_stats())

    def leaves_no_trace(self, label: int) -> bool:
        """True if nothing of this class would stay after ``forget``; may be so although not of every class."""
        return self.forgets_exactly

    def kept(self) -> str:
        """What is kept of the images, in words."""
        if not self.statistics:
            return "a network or weights trained on the images"
        parts = dict.fromkeys(_KEPT[stats.spread] for stats in self._class_stats())
        return f"of each class: count, {', '.join(parts)} of its features"

    def shrink(self, column: int) -> None:
        """Remove the class of that column from the statistics. Called before it is removed from ``classes_``."""
        for stats in self._class_stats():
            stats.remove(column)

    def absorb(self, other: Self, columns: Tensor) -> None:
        """Add another learner's statistics. Its class i is our class ``columns[i]``."""
        for mine, theirs in zip(self._class_stats(), other._class_stats()):
            mine.merge(theirs, columns)

    def release(self, other: Self, columns: Tensor) -> None:
        """Undo ``absorb``."""
        for mine, theirs in zip(self._class_stats(), other._class_stats()):
            mine.subtract(theirs, columns)

    def clear(self) -> None:
        """Empty the statistics of all classes."""
        for name, stats in zip(self.statistics, self._class_stats()):
            setattr(self, name, ClassStats(stats.dim, stats.spread).to(self.device))

    @torch.no_grad()
    def forget(self, label: int, *, exact: bool = False) -> None:
        """Remove a class and its statistics. A shared covariance may keep a trace of it: see ``forgets_exactly``.

        With ``exact`` that is refused, and nothing changes.
        """
        if not self.forgettable:
            self._need_statistics("forget a class")
        if label not in self._column:
            raise KeyError(f"class {label} was never met")
        if exact and not self.leaves_no_trace(label):
            raise UnsupportedError(
                f"{type(self).__name__} as it is set cannot forget this class without a trace: it keeps {self.kept()}, "
                "and not all that this class gave to the shared part is known; use ncm, or rda with storage='full'"
            )
        column = self._column[label]
        self.shrink(column)
        self.n_base_ -= int(column < int(self.n_base_))
        self.classes_ = self.classes_[torch.arange(len(self.classes_), device=self.device) != column]
        self._column = {int(kept): i for i, kept in enumerate(self.classes_.tolist())}

    @torch.no_grad()
    def merge(self, other: Self) -> None:
        """Add what another learner on the same network has learned, as if this one had seen those images too."""
        self._check_mergeable(other)
        self.absorb(other, self.columns(other.classes_))

    @torch.no_grad()
    def subtract(self, other: Self) -> None:
        """Undo ``merge(other)``, up to rounding; removes what both learners have learned from the same images."""
        self._check_mergeable(other)
        missing = [label for label in other.classes_.tolist() if label not in self._column]
        if missing:
            raise KeyError(f"cannot take away classes {missing[:5]}, which this learner has not met")
        self.release(other, self.columns(other.classes_))

    def copy_on_network(self) -> Self:
        """A copy that shares the network with this learner; neither may train it."""
        return copy.deepcopy(self, {id(self.network): self.network})

    def empty_copy(self) -> Self:
        """The same learner with no classes, on the same network. What it learns can be merged back."""
        self._need_statistics("be learned in parts and merged")
        copied = self.copy_on_network()
        copied.clear()
        copied._column, copied.classes_ = {}, self.classes_.new_zeros(0)
        copied.n_base_ = torch.zeros_like(self.n_base_)
        return copied

    def _class_stats(self) -> list[ClassStats]:
        return [getattr(self, name) for name in self.statistics]

    def _need_statistics(self, what: str) -> None:
        if not self.mergeable:
            raise UnsupportedError(
                f"{type(self).__name__} as it is set cannot {what}: what it learns is not kept class by class; "
                "use a method on class statistics such as ncm"
            )

    def _check_mergeable(self, other: "Merging") -> None:
        self._need_statistics("be merged")
        if type(other) is not type(self):
            raise ValueError(f"cannot merge {type(other).__name__} into {type(self).__name__}")
        mine, theirs = self.get_params() | {"seed": 0}, other.get_params() | {"seed": 0}
        differ = [
            f"{name} is {mine[name]} here and {theirs[name]} there" for name in mine if mine[name] != theirs[name]
        ]
        if differ:
            raise ValueError(f"cannot merge: {', '.join(differ)}")
        if other.network is self.network:
            return
        here, there = self.state_dict(), other.state_dict()
        for name in self.network_state_names():
            if not torch.equal(here[name].cpu(), there[name].cpu()):
                raise ValueError(f"cannot merge: the networks differ ({name}); both must have the same")
