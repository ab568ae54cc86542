"""Choose rate and augmentation of the contrastive base session on base classes alone.

    python benchmarks/contrast_rate.py --data FOLDER

The problem is a copy made of base classes' training images (36 pseudo-base, 24 pseudo-novel; see
:mod:`nocl.experiments.base_copy`): no novel class and no test image is read. Every trial trains the network and DSR's
projection by one cycle of the paper's objective (SC in both spaces, D = 2,048), and ``ncm``, ``slda``, ``rda`` and
``dsr`` learn on its features. First each rate with the image itself as the first view, as in the paper; then the other
first view with the best rate. The measure is ``ncm``'s Acc, because DSR too answers by the nearest prototype. The best
of four epochs need not be the best of thirty. Trials in the file of results are not run again, and a stopped training
goes on from ``--cache``.
"""

import json
from pathlib import Path

from bank import keep, parser
from base_strategies import pseudo, rivals
from nocl.experiments.base_copy import PARTITION
from nocl.methods.dsr import DSR
from nocl.plumbing.types import JSON
from nocl.pretrain.devices import PRECISIONS, Compute, computing
from nocl.results import environment
from nocl.streams import class_incremental
from tune_rda import train

BACKBONE = "reduced_resnet18"
RATES = (0.01, 0.02, 0.05)
AUGMENTS = ("none", "crop_flip")
FIXED: dict[str, JSON] = {**DSR.base_recipe.to_json(), "schedule": "onecycle", "weight_decay": 5e-4, "normalize": True}


def value(row: dict[str, JSON]) -> float:
    """What is compared: the Acc of nearest means after the last session of the copy, in percent."""
    scores = row["ncm"]
    assert isinstance(scores, dict)
    return float(scores["acc"])  # type: ignore[arg-type]


class Trials:
    """Trials of one file, each run once."""

    def __init__(self, root: Path, cache: Path, path: Path, epochs: int, precision: str) -> None:
        self.root, self.cache, self.path, self.epochs, self.precision = root, cache, path, epochs, precision
        self.copy = pseudo(root)
        self.rows: list[dict[str, JSON]] = json.loads(path.read_text())["rows"] if path.exists() else []

    def row(self, rate: float, augment: str) -> dict[str, JSON]:
        """The trial of these settings, from the file or run now."""
        for row in self.rows:
            if (row["lr"], row["augment"], row["epochs"]) == (rate, augment, self.epochs):
                return row
        stream = class_incremental(self.copy, partition=PARTITION)  # a session can be read once
        recipe = {**FIXED, "lr": rate, "augment": augment, "epochs": self.epochs}
        commit = environment()["commit"]
        with computing(Compute(precision=self.precision)):
            network, origin = train(stream, BACKBONE, recipe, self.cache)
        found = rivals(network, BACKBONE, self.root, self.cache)
        row = {"lr": rate, "augment": augment, "epochs": self.epochs, "commit": commit, "base": origin, **found}
        self.rows.append(row)
        self.keep()
        return row

    def keep(self, **content: JSON) -> None:
        command = f"python benchmarks/contrast_rate.py --epochs {self.epochs} --precision {self.precision}"
        keep(self.path, command, None, rows=list(self.rows), precision=self.precision, **content)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--precision", choices=PRECISIONS, default="32-true")
    args = arguments.parse_args()
    trials = Trials(args.data, args.cache, args.out / "contrast_rate.json", args.epochs, args.precision)
    best = max((trials.row(rate, AUGMENTS[0]) for rate in RATES), key=value)
    tried = [trials.row(float(best["lr"]), augment) for augment in AUGMENTS]  # type: ignore[arg-type]
    best = max(tried, key=value)
    trials.keep(chosen={"lr": best["lr"], "augment": best["augment"]})


if __name__ == "__main__":
    main()
