"""Methods on every kind of stream of CIFAR-100, on one given network: `nocl reproduce streams`.

The base session of every stream has the network's classes, those of order 0; the others come as the stream says.
Methods run on the network's features, which are computed once. A method's base session is learned once for a seed and
copied. Rows that are in the output file are not run again.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nocl.arrivals import STREAMS
from nocl.data import Dataset
from nocl.data.features import FeatureData, extract, trained_classes
from nocl.experiments.job import over
from nocl.experiments.report.summary import estimate
from nocl.experiments.report.tables import MISSING, markdown_table, percent_estimate
from nocl.learner import FrozenLearner
from nocl.methods import METHODS, make
from nocl.plumbing.files import write_json
from nocl.plumbing.registry import UnknownNameError, unknown
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.results import RunResult
from nocl.run import run
from nocl.streams import Stream, arrange

BASE = 60  # percent of the classes
ROWS = 500  # features at once for methods whose answer does not depend on it
MEASURES = ("a_auc", "a_last", "a_avg", "acc", "base_acc", "novel_acc", "hm", "worst_class", "class_forgetting")
TITLES = {"a_auc": "A_AUC", "a_last": "A_last", "worst_class": "Worst class at the end"}


class Contender(NamedTuple):
    """A row of the comparison: a method with its settings."""

    method: str
    preset: str | None = None
    params: dict[str, JSON] = {}  # noqa: RUF012  # never changed


# The expansion of acil, gacl and ranpac is smaller than the papers', for time.
CONTENDERS: dict[str, Contender] = {
    "ncm": Contender("ncm"),
    "slda": Contender("slda"),
    "rda": Contender("rda"),
    "foal": Contender("acil", "foal"),
    "acil": Contender("acil", None, {"expansion": 1000}),
    "gacl": Contender("acil", "gacl", {"expansion": 1000}),
    "ranpac": Contender("ranpac", None, {"expansion": 1000}),
    "dsr": Contender("dsr", None, {"refine_every": 100}),
    "fecam": Contender("fecam"),
}


class Comparison(NamedTuple):
    """What is compared, and where its rows are kept."""

    images: Dataset
    network: Path
    out: Path  # a folder
    names: Sequence[str] = tuple(CONTENDERS)
    streams: Sequence[str] = tuple(STREAMS)
    seeds: Sequence[int] = (0, 1, 2)
    test_every: int = 2000
    cache: Path | None = None  # of features; None: the user's


def compare_streams(asked: Comparison) -> Iterator[str]:
    """Run what is missing, write rows, table and figure, and say each row as it comes."""
    for name in asked.names:
        if name not in CONTENDERS:
            raise UnknownNameError(unknown(name, CONTENDERS, "contender"))
    path = asked.out / "streams.json"
    found: list[Any] = json.loads(path.read_text("utf-8")) if path.exists() else []
    done = {(row["stream"], row["name"], row["seed"]) for row in found}
    for row in _rows(asked, done):
        found.append(row)
        write_json(path, found)
        yield f"{row['stream']:12} {row['name']:8} seed {row['seed']}: A_last {100 * row['a_last']:.1f} %"
    (asked.out / "streams.md").write_text(table(found), "utf-8")
    draw(found, asked.out / "streams.svg")


def _rows(asked: Comparison, done: set[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """One row for each stream, contender and seed that is not done; all of a seed before the next."""
    for seed in asked.seeds:
        for name in asked.names:
            fitted = None
            for kind in asked.streams:
                if (kind, name, seed) in done:
                    continue
                if fitted is None:
                    learner, features = _contender(name, seed, asked)
                size = 10 if learner.depends_on_batching else min(ROWS, asked.test_every)
                stream = arrange(features, f"{kind}:base={BASE}", batch_size=size, base_batch_size=ROWS, seed=seed)
                _refuse_leak(asked.network, stream)
                fitted = learner.fit_base(stream.base) if fitted is None else fitted
                result = run(copy.deepcopy(fitted), stream, test_every=asked.test_every, test_batch=2000)
                yield _row(kind, name, result, stream)


def _refuse_leak(network: Path, stream: Stream) -> None:
    later = set(trained_classes(network) or ()) - set(stream.base.classes)
    if later:
        raise WrongBaseError(f"{network.name} was trained on {len(later)} classes that come after the base session")


def _contender(name: str, seed: int, asked: Comparison) -> tuple[FrozenLearner, FeatureData]:
    """The learner on stored features, and the features of the stages it takes."""
    method, preset, params = CONTENDERS[name]
    params = over(METHODS[method].presets[preset] if preset else {}, params)
    plain = make(method, **params)
    assert isinstance(plain, FrozenLearner)
    features = extract(asked.images, asked.network, cache=asked.cache, stages=plain.stages)
    stages: dict[str, JSON] = {} if plain.stages is None else {"stages": list(plain.stages)}
    stored: dict[str, JSON] = {"backbone": f"features:{features.feature_dim}", "seed": seed, **stages}
    learner = make(method, **{**params, **stored, "image_size": asked.images.image_size})
    assert isinstance(learner, FrozenLearner)
    return learner, features


def _row(kind: str, name: str, result: RunResult, stream: Stream) -> dict[str, Any]:
    assert result.anytime is not None
    about: dict[str, JSON] = {key: value for key, value in stream.describe().items() if key != "sessions"}
    return {
        "stream": kind, "name": name, "seed": result.seed,
        **{measure: getattr(result, measure) for measure in MEASURES},
        "curve": list(result.anytime.accuracy), "images": list(result.anytime.images),
        "seconds": list(result.seconds[1:]), "test_seconds": sum(result.test_seconds),
        "method": result.method, "params": result.params, "about": about, "environment": result.environment,
    }  # fmt: skip


def table(found: Sequence[dict[str, Any]]) -> str:
    """A_AUC, A_last and worst class of each contender on each stream: mean and half the 95 % interval over seeds."""
    names = [name for name in CONTENDERS if any(row["name"] == name for row in found)]
    parts = []
    for measure, title in TITLES.items():
        body = []
        for kind in STREAMS:
            cells = [_values(found, kind, name, measure) for name in names]
            body.append([kind, *(percent_estimate(estimate(values)) if values else MISSING for values in cells)])
        parts.append(f"### {title}\n\n{markdown_table(['Stream', *names], body)}")
    return "\n".join(parts)


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """A_last of each contender over all streams: what does not depend on the order is a flat line."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    axis = figure.subplots()
    for name in CONTENDERS:
        cells = [(position, _values(found, kind, name, "a_last")) for position, kind in enumerate(STREAMS)]
        points = [(position, 100 * sum(values) / len(values)) for position, values in cells if values]
        if points:
            axis.plot(*zip(*points), marker="o", label=name)
    axis.set_xticks(range(len(STREAMS)), list(STREAMS))
    axis.set_ylabel("A_last, %")
    axis.legend(ncols=2, fontsize=8)
    figure.tight_layout()
    with rc_context({"svg.hashsalt": "nocl"}):
        figure.savefig(path, metadata={"Date": None})


def _values(found: Sequence[dict[str, Any]], kind: str, name: str, measure: str) -> list[float]:
    return [row[measure] for row in found if (row["stream"], row["name"]) == (kind, name)]
