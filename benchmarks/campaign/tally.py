"""The counts of all calls so far: kept in one file with seed, commit and environment of each call, and added up."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nocl.plumbing.files import write_json
from nocl.results import environment

Counts = dict[str, int]
MOST = "most "  # a count whose name begins so is the largest of all calls, not the sum


def added(all_counts: list[Mapping[str, int]]) -> Counts:
    """The sums of counts, and the largest of those that are called most.

    >>> added([{"kills": 2, "most MB": 5}, {"kills": 3, "most MB": 4}])
    {'kills': 5, 'most MB': 5}
    """
    total: Counts = {}
    for counts in all_counts:
        for name, value in counts.items():
            total[name] = max(total.get(name, value), value) if name.startswith(MOST) else total.get(name, 0) + value
    return total


class Attack(NamedTuple):
    """``act(times, seed)`` counts what it did; ``wanted`` of ``unit`` are needed, ``at_once`` of them in one call."""

    name: str
    unit: str
    wanted: int
    at_once: int
    act: Callable[[int, int], Counts]


class Tally:
    """Attacks by name, each with its calls. ``minutes`` bounds how long attacks are begun."""

    def __init__(self, out: Path, seed: int, minutes: float, command: str) -> None:
        self.out, self.seed, self.command = out, seed, command
        self._until = time.monotonic() + 60 * minutes
        self._where = environment(torch.device("cpu"))

    @property
    def time_left(self) -> bool:
        return time.monotonic() < self._until

    def counts(self, name: str) -> Counts:
        """What all calls have counted."""
        return added([call["counts"] for call in self._calls().get(name, [])])

    def run(self, attacks: Sequence[Attack]) -> None:
        """Call one attack after the other, again and again, until all have their counts or the time is over."""
        called = True
        while called:
            called = False
            for attack in attacks:
                called = self._call(attack) or called

    def _call(self, attack: Attack) -> bool:
        """Call an attack that lacks counts, and note what it counted; False if it has enough or no time is left."""
        missing = attack.wanted - self.counts(attack.name).get(attack.unit, 0)
        if missing <= 0 or not self.time_left:
            return False
        seed, begun = self.seed + len(self._calls().get(attack.name, [])), time.monotonic()
        counts = attack.act(min(missing, attack.at_once), seed)
        self._note(attack.name, {"seed": seed, "seconds": round(time.monotonic() - begun, 1), "counts": counts})
        print(f"{attack.name}: {json.dumps(counts)}; in all {json.dumps(self.counts(attack.name))}", flush=True)
        return True

    def _note(self, name: str, call: dict[str, Any]) -> None:
        about = {"command": self.command, "commit": self._where["commit"], "dirty": self._where["dirty"]}
        calls = self._calls()
        calls.setdefault(name, []).append({**call, **about, "load_average": round(os.getloadavg()[0], 1)})
        write_json(self.out, {"environment": self._where, "attacks": calls})

    def _calls(self) -> dict[str, list[dict[str, Any]]]:
        return calls_in(self.out)


def calls_in(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The calls of each attack."""
    if not path.exists():
        return {}
    calls: dict[str, list[dict[str, Any]]] = json.loads(path.read_text())["attacks"]
    return calls
