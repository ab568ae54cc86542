"""Which classes are confused: counted from corrections, in memory, names only."""

from collections import Counter
from collections.abc import Collection

PAIRS = 1000  # kept at most; the rarest go first


class Confusions:
    """Counts of corrections: a picture of one class was taken for another."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()

    def add(self, right: str, taken_for: str) -> None:
        """Count a correction: a picture predicted as one class is of the other."""
        if right != taken_for:
            self._times[right, taken_for] += 1
        if len(self._times) > PAIRS:
            self._times = Counter(dict(self._times.most_common(PAIRS)))

    def pairs(self, known: Collection[str], most: int = 5) -> list[dict[str, str | int]]:
        """The pairs of known classes that were corrected most often.

        >>> seen = Confusions()
        >>> seen.add("cup", "mug"), seen.add("cup", "mug"), seen.add("cup", "pan")
        (None, None, None)
        >>> seen.pairs(["cup", "mug"])
        [{'right': 'cup', 'taken_for': 'mug', 'times': 2}]
        """
        names = set(known)
        self._times = Counter({pair: n for pair, n in self._times.items() if names.issuperset(pair)})
        return [{"right": right, "taken_for": wrong, "times": n} for (right, wrong), n in self._times.most_common(most)]
