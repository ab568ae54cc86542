"""What each ingredient of rda contributes: one is added, or taken away, at a time.

    python benchmarks/ingredients.py --data FOLDER --weights NETWORK

CIFAR-100, 60+4x10, order 0, the same frozen features for every row. Nothing is chosen here: rda's settings come from
tune_rda.py. Writes ingredients.json and ingredients.svg.
"""

from collections.abc import Sequence
from pathlib import Path

from bank import keep, open_bank, parser
from nocl.plumbing.types import JSON
from state_size import measure

ROWS: tuple[tuple[str, dict[str, JSON]], ...] = (
    ("nearest mean, last stage", {"storage": "mean", "stages": [4], "power": 1.0}),
    ("+ transform", {"storage": "mean", "stages": [4]}),
    ("+ shared covariance", {"storage": "shared", "stages": [4]}),
    ("+ own covariances, shrunk", {"stages": [4]}),
    ("+ depth", {"stages": [1, 2, 3, 4]}),
    ("+ spread over positions = rda", {}),
    ("rda without transform", {"power": 1.0}),
    ("rda without own covariances", {"storage": "shared"}),
    ("rda almost without shrinkage", {"prior": 0.01}),
    ("rda without stage 1", {"stages": [2, 3, 4, -2, -3]}),
    ("rda with a Gaussian's tails", {"degrees": 1e6}),
)


def draw(points: Sequence[dict[str, JSON]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 0.4 * len(points) + 1))
    names = [str(p["name"]) for p in points][::-1]
    for shift, score in ((0.2, "acc"), (-0.2, "hm")):
        axis.barh([i + shift for i in range(len(names))], [p[score] for p in points][::-1], 0.4, label=score)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="%", xlim=(30, None))
    axis.grid(alpha=0.3, axis="x")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    args = parser(__doc__).parse_args()
    bank, blocks = open_bank(args)
    points = [measure(bank, blocks, name, **params) for name, params in ROWS]
    keep(args.out / "ingredients.json", "python benchmarks/ingredients.py", bank, points=points)
    draw(points, args.out / "ingredients.svg")


if __name__ == "__main__":
    main()
