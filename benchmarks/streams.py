"""Methods on every kind of stream of CIFAR-100, on one given network: A_AUC and A_last over stream seeds, and a figure.

    python benchmarks/streams.py --root DATA --weights cifar100_base60_order0_ce.safetensors

The network was trained on the first 60 classes of order 0, which are the base session of every stream; the other 40
classes come as the stream says. Methods on a frozen network run on its features, which are computed once. A method's
base session is learned once for a seed and copied. Rows that are in the output file are not run again.
"""

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from nocl import data
from nocl.arrivals import STREAMS
from nocl.data import Dataset
from nocl.data.features import FeatureData, extract
from nocl.experiments.job import over
from nocl.learner import Learner
from nocl.methods import METHODS, make
from nocl.plumbing.files import write_json
from nocl.report.summary import estimate
from nocl.report.tables import markdown_table, percent_estimate
from nocl.results import RunResult, environment
from nocl.run import run
from nocl.streams import Stream, arrange

# name in the table: method, preset, parameters. The expansion of ranpac and acil is smaller than the papers' for time.
CONTENDERS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "ncm": ("ncm", None, {}),
    "slda": ("slda", None, {}),
    "rda": ("rda", None, {}),
    "foal": ("acil", "foal", {}),
    "acil": ("acil", None, {"expansion": 1000}),
    "gacl": ("acil", "gacl", {"expansion": 1000}),
    "ranpac": ("ranpac", None, {"expansion": 1000}),
    "dsr": ("dsr", None, {"refine_every": 100}),
    "fecam": ("fecam", None, {}),
}
ROWS = 500  # features at once for methods whose answer does not depend on it
MEASURES = ("a_auc", "a_last", "a_avg", "acc", "base_acc", "novel_acc", "hm", "worst_class", "class_forgetting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=None, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=platformdirs.user_cache_path("nocl") / "features")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/streams/streams.json"))
    parser.add_argument("--methods", default=",".join(CONTENDERS))
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test-every", type=int, default=2000)
    parser.add_argument("--table", action="store_true", help="write the table and figure of what is there, run nothing")
    args = parser.parse_args()
    found: list[dict[str, Any]] = json.loads(args.out.read_text("utf-8")) if args.out.exists() else []
    if not args.table:
        images = data.load("cifar100", root=args.root)
        for row in rows(args, images, {key(row) for row in found}):
            found.append(row)
            write_json(args.out, found)
            print(row["stream"], row["name"], row["seed"], f"{100 * row['a_last']:.2f}", flush=True)
    args.out.with_suffix(".md").write_text(table(found), "utf-8")
    draw(found, args.out.with_suffix(".svg"))


def rows(args: argparse.Namespace, images: Dataset, done: set[tuple[object, ...]]) -> Iterator[dict[str, Any]]:
    """One row for each stream, contender and seed that is not done; all of a seed before the next."""
    for seed in range(args.seeds):
        for name in args.methods.split(","):
            wanted = [stream for stream in args.streams.split(",") if (stream, name, seed) not in done]
            if not wanted:
                continue
            learner, features = contender(name, seed, images, args)
            fitted = None
            for stream in wanted:
                size = 10 if learner.depends_on_batching else ROWS  # type: ignore[attr-defined]
                each = arrange(features, f"{stream}:base=60", batch_size=size, base_batch_size=500, seed=seed)
                if fitted is None:
                    fitted = learner.fit_base(each.base)
                result = run(copy.deepcopy(fitted), each, test_every=args.test_every, test_batch=2000)
                yield row_of(stream, name, seed, result, each)


def contender(name: str, seed: int, images: Dataset, args: argparse.Namespace) -> tuple[Learner, FeatureData]:
    """The learner on stored features, and the features of the stages it takes."""
    method, preset, params = CONTENDERS[name]
    params = over(METHODS[method].presets[preset] if preset else {}, params)
    stages = make(method, **params).stages  # type: ignore[attr-defined]
    features = extract(images, args.weights, cache=args.cache, stages=stages)
    params = {key: value for key, value in params.items() if key != "stages"}
    stored = {"backbone": f"features:{features.feature_dim}", "image_size": images.image_size, "seed": seed}
    return make(method, **params, **({"stages": None} if method == "rda" else {}), **stored), features


def row_of(stream: str, name: str, seed: int, result: RunResult, of: Stream) -> dict[str, Any]:
    described = {k: v for k, v in of.describe().items() if k != "sessions"}
    assert result.anytime is not None
    return {
        "stream": stream, "name": name, "seed": seed,
        **{measure: getattr(result, measure) for measure in MEASURES},
        "curve": result.anytime.accuracy, "images": result.anytime.images,
        "seconds": result.seconds[1:], "test_seconds": sum(result.test_seconds),
        "method": result.method, "params": result.params, "about": described, "environment": environment(),
    }  # fmt: skip


def key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["stream"], row["name"], row["seed"]


def table(found: list[dict[str, Any]]) -> str:
    """A_AUC and A_last of each contender on each stream, mean and half the 95 % interval over stream seeds."""
    names = [name for name in CONTENDERS if any(row["name"] == name for row in found)]
    parts = []
    for measure, title in (("a_auc", "A_AUC"), ("a_last", "A_last"), ("worst_class", "Worst class at the end")):
        body = []
        for stream in STREAMS:
            cells = []
            for name in names:
                values = [row[measure] for row in found if (row["stream"], row["name"]) == (stream, name)]
                cells.append(percent_estimate(estimate(values)) if values else "–")
            body.append([stream, *cells])
        parts.append(f"### {title}\n\n{markdown_table(['Stream', *names], body)}")
    return "\n".join(parts)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """A_last of each contender over all streams: what does not depend on the order is a flat line."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "nocl"
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.5))
    for name in CONTENDERS:
        points = [
            (position, sum(values) / len(values))
            for position, stream in enumerate(STREAMS)
            if (values := [100 * row["a_last"] for row in found if (row["stream"], row["name"]) == (stream, name)])
        ]
        if points:
            axis.plot(*zip(*points), marker="o", label=name)
    axis.set_xticks(range(len(STREAMS)), list(STREAMS))
    axis.set_ylabel("A_last, %")
    axis.legend(ncols=2, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
