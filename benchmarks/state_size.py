"""rda's accuracy against the bytes it keeps of each class.

    python benchmarks/state_size.py --data FOLDER --weights NETWORK

From the mean alone to the full covariance, on CIFAR-100, 60+4x10, order 0. Bytes are those that grow with the number of
classes; an image of CIFAR-100 has 3,072. Writes state_size.json and state_size.svg.
"""

from collections.abc import Sequence
from pathlib import Path

from bank import Bank, keep, open_bank, parser, percent
from nocl.methods.rda.method import RDA
from nocl.plumbing.types import JSON

IMAGE_BYTES = 3 * 32 * 32
RANKS = (0, 4, 8, 16, 24, 48)


def bytes_per_class(learner: RDA) -> float:
    """Of the tensors that have a row for each class."""
    shapes, stats = learner.shapes, learner.stats
    tensors = [stats.mean, stats.count, shapes.triangle, shapes.directions, shapes.weights]
    return sum(t.numel() * t.element_size() for t in tensors) / len(stats)


def draw(points: Sequence[dict[str, JSON]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.8))
    for name in ("acc", "hm"):
        axis.plot([p["bytes_per_class"] for p in points], [p[name] for p in points], marker="o", ms=3, label=name)
    axis.axvline(10 * IMAGE_BYTES, color="grey", ls="--")
    axis.text(10 * IMAGE_BYTES, axis.get_ylim()[0], " 10 images", color="grey", va="bottom")
    axis.set_xscale("log")
    axis.set(xlabel="bytes kept of each class", ylabel="%")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def measure(bank: Bank, blocks: Sequence[Sequence[int]], name: str, **params: JSON) -> dict[str, JSON]:
    learner = RDA(**params)  # type: ignore[arg-type]
    bank.teach_base(learner, blocks[0])
    bank.teach(learner, blocks[1:], size=500)
    size = bytes_per_class(learner)
    scores = percent(bank.scores(learner, blocks))
    point = {"name": name, "bytes_per_class": round(size), "images": round(size / IMAGE_BYTES, 2), **scores}
    print(point, flush=True)
    return point


def main() -> None:
    args = parser(__doc__).parse_args()
    bank, blocks = open_bank(args)
    points = [measure(bank, blocks, storage, storage=storage) for storage in ("mean", "shared")]
    points += [measure(bank, blocks, f"rank {rank}", storage="lowrank", rank=rank) for rank in RANKS]
    points.append(measure(bank, blocks, "full"))
    under = [p for p in points if p["bytes_per_class"] < 10 * IMAGE_BYTES]  # type: ignore[operator]
    best = max(under, key=lambda p: p["hm"])  # type: ignore[arg-type, return-value]
    keep(
        args.out / "state_size.json", "python benchmarks/state_size.py", bank,
        points=points, best_below_ten_images=best["name"],
    )  # fmt: skip
    draw(points, args.out / "state_size.svg")


if __name__ == "__main__":
    main()
