"""Accuracy against the number of images of each novel class, for every exemplar-free method on frozen features.

    python benchmarks/few_shot.py --data FOLDER --weights NETWORK

CIFAR-100, 60+4x10, order 0. The base classes have all their images; each novel class has its first n. Every method has
its defaults but DSR, whose projection is smaller (``SETTINGS``; trained on base features, as in the arena) so that
eight runs take minutes. Writes few_shot.json and few_shot.svg; methods already in the file and not asked for again stay
in it, each with the commit it was made at.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bank import keep, open_bank, parser, percent
from nocl.learner import FrozenLearner
from nocl.methods import METHODS, make
from nocl.plumbing.types import JSON
from nocl.results import environment

SHOTS = (1, 2, 5, 10, 20, 50, 100, 500)
SETTINGS: dict[str, dict[str, JSON]] = {"dsr": {"dim": 256, "recipe": {"objective": "ce"}}}


def contenders() -> list[str]:
    """Methods on frozen features that keep no image; of those with a head, the one that can train it on features."""
    return [
        name
        for name, cls in METHODS.items()
        if issubclass(cls, FrozenLearner) and not cls.stores_exemplars
        if name in SETTINGS or not make(name).needs_heads()
    ]


def draw(curves: Mapping[str, Sequence[dict[str, JSON]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharex=True)
    titles = {"base": "old classes, %", "novel": "new classes, %", "hm": "harmonic mean, %"}
    for axis, (name, title) in zip(axes, titles.items()):
        for method, points in curves.items():
            axis.plot([p["shots"] for p in points], [p[name] for p in points], marker="o", ms=3, label=method)
        axis.set_xscale("log")
        axis.set_xticks(SHOTS, [str(n) for n in SHOTS])
        axis.set(xlabel="images of each novel class", ylabel=title)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--methods", nargs="+", default=contenders())
    arguments.add_argument("--batch-size", type=int, default=500, help="10 for methods that depend on it")
    arguments.add_argument("--draw", action="store_true", help="draw the figure from the file and stop")
    args = arguments.parse_args()
    if args.draw:
        draw(json.loads((args.out / "few_shot.json").read_text())["curves"], args.out / "few_shot.svg")
        return
    bank, blocks = open_bank(args)
    path = args.out / "few_shot.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    curves: dict[str, list[dict[str, JSON]]] = kept.get("curves", {})
    commits: dict[str, JSON] = kept.get("commits", dict.fromkeys(curves, kept.get("environment", {}).get("commit")))
    for method in args.methods:
        based = make(method, **SETTINGS.get(method, {}))
        assert isinstance(based, FrozenLearner)
        bank.teach_base(based, blocks[0])
        curves[method] = []
        for shots in SHOTS:
            learner = bank.teach(copy.deepcopy(based), blocks[1:], shots, args.batch_size)
            curves[method].append({"shots": shots, **percent(bank.scores(learner, blocks))})
            print(method, curves[method][-1], flush=True)
        commits[method] = environment()["commit"]
        keep(path, "python benchmarks/few_shot.py", bank, settings=SETTINGS, commits=commits, curves=curves)
        draw(curves, args.out / "few_shot.svg")


if __name__ == "__main__":
    main()
