"""The counts of all calls so far: kept in one file with seed, commit and environment of each call, and added up."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

    def attack(self, name: str, unit: str, wanted: int, at_once: int, act: Callable[[int, int], Counts]) -> None:
        """Call ``act(times, seed)`` until ``wanted`` of ``unit`` are counted or the time is over; note each call."""
        while self.time_left and (missing := wanted - self.counts(name).get(unit, 0)) > 0:
            seed = self.seed + len(self._calls().get(name, []))
            begun = time.monotonic()
            counts = act(min(missing, at_once), seed)
            self._note(name, {"seed": seed, "seconds": round(time.monotonic() - begun, 1), "counts": counts})
            print(f"{name}: {json.dumps(counts)}; in all {json.dumps(self.counts(name))}", flush=True)

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
