"""Summaries of runs: one for each method and setting, with the mean and its 95 % interval over seeds.

Runs are averaged if only seed and class order differ. A run that is not finished is never averaged with finished ones,
because the accuracy after fewer classes is another quantity.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scipy.special import stdtrit

from nocl.plumbing.types import JSON
from nocl.results import RunResult

ORDER_KEYS = frozenset({"seed", "order_seed", "order", "class_order", "classes", "sessions", "session_classes"})
SPEED_KEYS = frozenset({"rows_at_once"})
LEAK, UNTRAINED = "novel_classes_in_network", "base_classes_not_in_network"
SILENT = "network_classes_unknown"  # True if it is not known what the network was trained on
FOREIGN = "foreign_order"  # the base classes are not those of the network: the leak of the published code
NO_SPREAD = 1e-3  # of the mean: an interval of orders that is narrower is rounding, not an interval
BASE_KEYS = ("recipe", "epochs")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; ``std`` and ``half``, half the width of the 95 % interval, need two seeds."""

    mean: float
    std: float | None
    half: float | None
    seeds: int


@dataclass(frozen=True)
class Summary:
    """All runs of one method with one set of hyper-parameters in one setting."""

    label: str  # the method, with the settings in which its rows differ
    setting: str  # data set and partition, with what else differs between settings
    runs: tuple[RunResult, ...]
    acc: Estimate
    base: Estimate | None  # None without a base session
    novel: Estimate | None
    hm: Estimate | None
    average: Estimate
    forgetting: Estimate | None
    online_seconds: Estimate  # learning sessions 1 ... S, without base training and testing
    test_seconds: Estimate  # all tests
    state_bytes: Estimate
    curve: tuple[Estimate, ...]  # Acc after each session, the base first if there is one
    a_auc: Estimate | None  # of tests in the middle of sessions, None where there were none
    a_last: Estimate
    a_avg: Estimate
    worst_class: Estimate
    class_forgetting: Estimate | None
    anytime: tuple[Estimate, ...]  # accuracy at each of those tests

    @property
    def first(self) -> RunResult:
        """One of the runs, to read what all of them share."""
        return self.runs[0]

    @property
    def seeds(self) -> int:
        """Number of different pairs of seed and class order."""
        return self.acc.seeds

    @property
    def note(self) -> str:
        """Remarks about this row; empty if there are none."""
        notes = []
        if leaked := self.first.stream.get(LEAK):
            notes.append(f"LEAK: the network was trained on {leaked} of the novel classes")
        if not self.first.finished:
            notes.append(f"unfinished: {len(self.first.accuracy) - 1} of {len(self.first.sizes) - 1} sessions")
        if len(self.runs) > self.seeds:
            notes.append(f"{len(self.runs)} runs")
        return ", ".join(notes)


def summarise(results: Iterable[RunResult]) -> list[Summary]:
    """One summary per method, hyper-parameters and setting: by setting, finished first, best Acc first."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        runs = groups.setdefault(_key(result), [])
        if result not in runs:  # the same file named twice is one run
            runs.append(result)
    grouped = [sorted(runs, key=seed_pair) for some in groups.values() for runs in _split_by_weights(some)]
    settings = _settings([runs[0] for runs in grouped])
    labels = _labels(grouped)
    rows = [_summary(runs, label, setting) for runs, label, setting in zip(grouped, labels, settings)]
    return sorted(rows, key=lambda row: (row.setting, not row.first.finished, -row.acc.mean, row.label))


def by_setting(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """The rows of each setting; only rows of one setting may be compared."""
    found: dict[str, list[Summary]] = {}
    for row in rows:
        found.setdefault(row.setting, []).append(row)
    return found


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, sample standard deviation and half width of Student's 95 % interval.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, found.std, round(found.half, 4)
    (2.0, 1.0, 2.4841)
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None, count)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Estimate(mean, std, float(stdtrit(count - 1, 0.975)) * std / math.sqrt(count), count)


def seed_pair(result: RunResult) -> tuple[int, str]:
    """What makes two runs of a group independent samples: seed, class order, the stream's seed, given network."""
    parts = [result.stream.get(name) for name in ("order_seed", "seed")]
    order = " ".join(text(part) for part in parts[: 1 if parts[1] is None else 2])
    return result.seed, order + (f" {_weights(result)}" if "features" in result.stream else "")


def draws(runs: Sequence[RunResult]) -> str:
    """In words, how the runs differ: so many seeds, or orders on so many given networks."""
    count, networks = len({seed_pair(run) for run in runs}), len({_weights(run) for run in runs})
    if not all(_weights(run) for run in runs):
        return str(count)
    named = f"{networks} network" + "s" * (networks > 1)
    return named if count == networks else f"{count} orders, {named}"


def text(value: JSON) -> str:
    """A JSON value in one line; texts without quotes."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _summary(runs: Sequence[RunResult], label: str, setting: str) -> Summary:
    def over(read: Callable[[RunResult], float | None]) -> Estimate | None:
        return over_seeds(runs, read)

    def sure(read: Callable[[RunResult], float]) -> Estimate:
        found = over_seeds(runs, read)
        assert found is not None
        return found

    return Summary(
        label=label,
        setting=setting,
        runs=tuple(runs),
        acc=sure(lambda run: run.acc),
        base=over(lambda run: run.base_acc),
        novel=over(lambda run: run.novel_acc),
        hm=over(lambda run: run.hm),
        average=sure(lambda run: run.average),
        forgetting=over(lambda run: run.forgetting),
        online_seconds=sure(lambda run: math.fsum(run.seconds[1:])),
        test_seconds=sure(lambda run: math.fsum(run.test_seconds)),
        state_bytes=sure(lambda run: sum(run.state_bytes.values())),
        a_auc=over(lambda run: run.a_auc),
        a_last=sure(lambda run: run.a_last),
        a_avg=sure(lambda run: run.a_avg),
        worst_class=sure(lambda run: run.worst_class),
        class_forgetting=over(lambda run: run.class_forgetting),
        anytime=tuple(sure(partial(_at_test, index)) for index in range(_common_tests(runs))),
        curve=tuple(point for t in range(len(runs[0].accuracy)) if (point := over(partial(_acc_after, t))) is not None),
    )


def _acc_after(t: int, run: RunResult) -> float | None:
    return run.curve[t].acc


def _at_test(index: int, run: RunResult) -> float:
    assert run.anytime is not None
    return run.anytime.accuracy[index]


def _common_tests(runs: Sequence[RunResult]) -> int:
    """How many tests in the middle of sessions all the runs have."""
    return min(0 if run.anytime is None else len(run.anytime.accuracy) for run in runs)


def over_seeds(runs: Sequence[RunResult], read: Callable[[RunResult], float | None]) -> Estimate | None:
    """Average runs that repeat a seed first: they are not independent and must not make the interval smaller."""
    values: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        value = read(run)
        if value is not None:
            values.setdefault(seed_pair(run), []).append(value)
    if not values:
        return None
    found = estimate([math.fsum(repeats) / len(repeats) for repeats in values.values()])
    alone = len({_weights(run) for run in runs}) == 1 and _weights(runs[0]) != ""
    if alone and found.half is not None and found.half <= NO_SPREAD * abs(found.mean):
        return Estimate(found.mean, None, None, found.seeds)  # the order changes nothing, and there is one network
    return found


def _choices(result: RunResult) -> dict[str, JSON]:
    """The method's hyper-parameters and base recipe, without the weights."""
    chosen: dict[str, JSON] = {f"base {key}": result.base[key] for key in BASE_KEYS if key in result.base}
    left_out = {"seed", "weights"} | ({"recipe"} & result.base.keys())  # the full recipe is there
    if "features" in result.stream:
        left_out |= {"backbone"}  # the features' length; stages and pooling stand beside it
    chosen |= {key: value for key, value in result.params.items() if key not in left_out}
    flat: dict[str, JSON] = {}
    for key, value in chosen.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _split_by_weights(runs: list[RunResult]) -> list[list[RunResult]]:
    """One group per network file, unless each class order has its own: then the file is part of the draw."""
    files: dict[str, list[RunResult]] = {}
    for run in runs:
        files.setdefault(_weights(run), []).append(run)
    orders = [{_base_order(run) for run in some} for some in files.values()]
    one_each = all(len(some) == 1 for some in orders) and len(set().union(*orders)) == len(orders)
    return [runs] if one_each else list(files.values())


def _base_order(run: RunResult) -> str:
    """Which base classes a run has: on a given network they are the network's, elsewhere the order decides them."""
    return str(sorted(run.session_classes[0])) if "features" in run.stream else text(run.stream.get("order_seed"))


def _weights(run: RunResult) -> str:
    """The network given by the user, by content where it is known; empty for a network trained in the run."""
    features = run.stream.get("features")
    if isinstance(features, dict):
        return text(features.get("sha256"))
    given = run.params.get("weights")
    return "" if given is None else text(run.base.get("sha256", given))


def _stream(result: RunResult) -> dict[str, JSON]:
    """What decides the images and their order, seeds and the given network's file apart."""
    left_out = ORDER_KEYS | SPEED_KEYS | {"features"}
    left_out |= {
        key for key in (LEAK, UNTRAINED) if not result.stream.get(key)
    }  # without a leak the setting makes no difference
    return {key: value for key, value in result.stream.items() if key not in left_out}


def _key(result: RunResult) -> str:
    progress = None if result.finished else len(result.accuracy)
    drawn = "seed" in result.stream  # then the number of new classes of a session is random
    sizes: list[JSON] = [len(result.sizes)] if drawn else list(result.sizes)
    every = None if result.anytime is None else result.anytime.every
    tags: dict[str, JSON] = dict(result.tags)
    given = bool(_weights(result))
    parts: list[JSON] = [result.method, _choices(result), _stream(result), sizes, tags, progress, given, every]
    return json.dumps(parts, sort_keys=True)


def _labels(grouped: Sequence[Sequence[RunResult]]) -> list[str]:
    methods: dict[str, list[dict[str, JSON]]] = {}
    for runs in grouped:
        methods.setdefault(runs[0].method, []).append(_choices(runs[0]) | {"weights": _weights_name(runs)})
    own = {method: iter(choices) for method, choices in methods.items()}
    return [_named(runs[0].method, next(own[runs[0].method]), methods[runs[0].method]) for runs in grouped]


def _weights_name(runs: Sequence[RunResult]) -> str:
    names = sorted({Path(text(given)).name for run in runs if (given := _file(run))})
    return names[0] if len(names) == 1 else "one per class order" if names else "trained here"


def _file(run: RunResult) -> JSON:
    features = run.stream.get("features")
    return features.get("weights") if isinstance(features, dict) else run.params.get("weights")


def _settings(results: Sequence[RunResult]) -> list[str]:
    names = [" ".join(text(result.stream.get(key, "?")) for key in ("dataset", "partition")) for result in results]
    return [
        _named(name, _stream(result), [_stream(other) for other, same in zip(results, names) if same == name])
        for name, result in zip(names, results)
    ]


def _named(name: str, own: Mapping[str, JSON], all_of_that_name: Sequence[Mapping[str, JSON]]) -> str:
    """The name, followed by the values in which those of that name differ."""
    different = [
        f"{key}={text(own[key])}"
        for key in own
        if any(key not in other or other[key] != own[key] for other in all_of_that_name)
    ]
    return f"{name} ({', '.join(different)})" if different else name
