"""Which base training serves which method: strategies with an equal number of epochs, rivals on each one's features.

    python benchmarks/base_strategies.py --data FOLDER --epochs 4

The whole problem is made of base classes' training images (36 pseudo-base, 24 pseudo-novel; see
:mod:`nocl.experiments.base_copy`), so the answer may be used to choose a recipe. No novel
class and no test image is read. Each strategy trains one network;
``rda``, ``slda``, ``ncm`` and ``dsr`` then learn on its frozen features, as ``nocl compare`` has them do. Epochs are
equal, time is not: ``passes`` counts the images that go through the network for each image of an epoch. Strategies that
are in the file of results already are not run again (name another ``--out`` to repeat them), and a stopped training
goes on from ``--cache``.
"""

import json
from pathlib import Path

from bank import keep, parser, percent
from nocl import data
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.experiments.compare import read_method
from nocl.experiments.job import Job
from nocl.plumbing.types import JSON
from nocl.results import environment
from nocl.streams import class_incremental
from tune_rda import RECIPE, train

STRATEGIES: dict[str, dict[str, JSON]] = {
    "ce": {},
    "sc": {"objective": "sc"},
    "ce+da": {"objective": "ce+da"},
    "ce+ssl": {"objective": "ce+ssl"},
    "sc+da": {"objective": "sc+da"},
    "sc+ssl": {"objective": "sc+ssl"},
    "ce, images as they are": {"augment": "none"},
    "ce, constant rate": {"schedule": "constant"},
}
METHODS = ("rda", "slda", "ncm", "dsr@dim=256")


def pseudo(root: Path) -> data.Dataset:
    """The data set of the runs: training images of CIFAR-100's base classes alone."""
    whole = data.load("cifar100", root=root)
    return base_only(whole, class_incremental(whole).blocks[0])


def rivals(network: Path, backbone: str, root: Path, cache: Path) -> dict[str, JSON]:
    """Scores of each method on this network's features, in percent."""
    like = Job(
        "ncm", {"backbone": backbone}, dataset="base_strategies:pseudo", root=str(root), partition=PARTITION,
        network_from=str(network), feature_cache=str(cache),
    )  # fmt: skip
    return {text: percent(read_method(text, like).run(cache=cache).last) for text in METHODS}


def views(objective: str) -> int:
    """Images that pass the network for each image of a base batch."""
    views = 2 if objective.startswith("sc") else 1
    return views * (2 if "+da" in objective else 1) + (3 if "+ssl" in objective else 0)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("strategies", nargs="*", default=list(STRATEGIES))
    arguments.add_argument("--backbone", default="tiny_resnet18")
    arguments.add_argument("--epochs", type=int, default=4)
    args = arguments.parse_args()
    copy = pseudo(args.data)
    path = args.out / f"base_strategies-{args.backbone}-{args.epochs}.json"
    rows: list[JSON] = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {row["strategy"] for row in rows if isinstance(row, dict)}
    for name in (name for name in args.strategies if name not in done):
        stream = class_incremental(copy, partition=PARTITION)  # a session can be read once
        recipe = {**RECIPE, **STRATEGIES[name], "epochs": args.epochs}
        commit = environment()["commit"]
        network, origin = train(stream, args.backbone, recipe, args.cache)
        row = rivals(network, args.backbone, args.data, args.cache)
        passes = views(str(recipe.get("objective", "ce")))
        rows.append({"strategy": name, "passes": passes, "commit": commit, "base": origin, **row})
        print(name, row, flush=True)
        command = f"python benchmarks/base_strategies.py --backbone {args.backbone} --epochs {args.epochs}"
        keep(path, command, None, rows=rows, stream=stream.describe())


if __name__ == "__main__":
    main()
