"""Models that rest on few images: from how many on should rda trust the covariance that its classes share?

    python benchmarks/few_classes.py --data FOLDER

No base session, and no test image: training images of the base classes of order 0 are taught and others asked, seen by
the networks of tune_rda.py (all 60 classes of both copies) and by EfficientNet-Lite0 (the 24 pseudo-novel ones). Cases
have equal classes of 2 to 60 images, or unequal ones: the class of rank r in an order drawn by a seed has top / r. With
``half`` times d images half of the shared covariance is replaced by a round one (``_HALF_KNOWN`` in rda's shared.py).
The mean over all cases, each network counting as much as another, is what it is judged by; values within a quarter
point of the best are taken as equal. Beside it stand ``plain``, where that one is round along the strength of the
features too, and nearest means; ``strength`` is how many times as much as along other directions images vary along it.
Writes few_classes.json.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from bank import keep
from nocl import data
from nocl.learner import FrozenLearner
from nocl.methods.ncm import NCM
from nocl.methods.rda import RDA, shared
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import ClassStats, tukey
from nocl.stats.linalg import Cached
from tune_rda import EYES, LEARNED, SPLITS, Bench, arguments, of_eyes, open_bench

HALVES = (0.5, 0.7, 1, 1.4, 2)
EQUAL, TOPS, SEEDS = (1, 2, 5, 20, 60), (30, 100, 400), (0, 1)  # images of each class; images of the largest one
PAIRS = 20  # of classes of one image, each a model
ASKED = 25  # images of a class

Make = Callable[[type[FrozenLearner]], FrozenLearner]
Features = Callable[[FrozenLearner], tuple[Tensor, Tensor]]  # of its stages: taught and asked [classes, images, d]


def unequal(n_classes: int, top: int, most: int, seed: int) -> list[int]:
    """How many images each class has.

    >>> sorted(unequal(4, 30, 20, 0))
    [8, 10, 15, 20]
    """
    rank = np.random.default_rng(seed).permutation(n_classes) + 1
    return [min(most, max(1, round(top / r))) for r in rank.tolist()]


def of_bank(bench: Bench) -> Features:
    """All classes of a copy: its training images are taught, its held-out ones asked."""
    bank, classes = bench.bank, range(bench.bank.n_classes)

    def features(learner: FrozenLearner) -> tuple[Tensor, Tensor]:
        columns = bank.columns(learner.stages)
        return (
            torch.stack([bank.train[bank.train_y == c][:, columns] for c in classes]),
            torch.stack([bank.test[bank.test_y == c][:ASKED, columns] for c in classes]),
        )

    return features


def accuracy(learner: FrozenLearner, taught: Tensor, asked: Tensor, counts: Sequence[int]) -> Callable[[], float]:
    """Teach these counts; then a function that says how often, in percent, the asked images are told apart."""
    for c, count in enumerate(counts):
        learner.learn(taught[c, :count], torch.full((count,), c))
    right = torch.arange(len(counts)).repeat_interleave(asked.shape[1])

    def measure() -> float:
        answers = torch.cat([learner.score(part).argmax(1) for part in asked.flatten(0, 1).split(500)])
        return 100 * float((answers == right).double().mean())

    return measure


class Plain(RDA):
    """Round along the strength too."""

    def _shared(self) -> shared.Shared:
        return shared.Shared(self.stats, strong=False)


def compare(make: Make, features: Features, counts: Sequence[int], classes: Sequence[int] | None = None) -> list[float]:
    """Of every value of ``half``, of the default without strength, and of nearest means; ``classes`` of all there."""

    def of(learner: FrozenLearner) -> Callable[[], float]:
        taught, asked = features(learner)
        chosen = list(range(len(counts))) if classes is None else list(classes)
        return accuracy(learner, taught[chosen], asked[chosen], counts)

    learner, found = make(RDA), []
    assert isinstance(learner, RDA)
    measure, usual = of(learner), shared._HALF_KNOWN
    for shared._HALF_KNOWN in HALVES:  # type: ignore[assignment]
        learner._rule = Cached()
        found.append(measure())
    shared._HALF_KNOWN = usual
    return [*found, of(make(Plain))(), of(make(NCM))()]


def strength(learner: FrozenLearner, taught: Tensor) -> float:
    """How many times as much as along others images of a class vary along the mean of all, [classes, images, d]."""
    assert isinstance(learner, RDA)
    stats = ClassStats(taught.shape[2], "shared")
    stats.grow(len(taught))
    for c, rows in enumerate(tukey(taught, learner.power)):
        stats.update(rows, torch.full((len(rows),), c))
    along, within = stats.mean.mean(0), stats.shared_covariance(unbiased=True)
    return float(along @ within @ along / along.square().sum() / (within.trace() / len(within)))


def main() -> None:
    args = arguments(__doc__)
    whole = data.load("cifar100", root=args.data)
    benches = [open_bench(whole, split, args) for split in SPLITS]
    seen = of_eyes(benches[0])
    sources: dict[str, tuple[Make, Features, int, int]] = {
        f"{args.backbone}, split {split}": (lambda kind: kind(backbone=args.backbone), of_bank(bench), 60, 400)
        for split, bench in zip(SPLITS, benches)
    }
    sources[EYES] = (
        lambda kind: kind(backbone=f"features:{seen.shape[2]}", stages=None),
        lambda learner: (seen[:, :LEARNED], seen[:, LEARNED:][:, :ASKED]), len(seen), LEARNED,
    )  # fmt: skip
    rows: list[JSON] = []
    strengths: dict[str, JSON] = {}
    means = []
    for name, (make, features, n_classes, most) in sources.items():
        cases = {f"{n} each": [n] * n_classes for n in EQUAL if n <= most}
        cases |= {f"{top} / rank, seed {seed}": unequal(n_classes, top, most, seed) for top in TOPS for seed in SEEDS}
        found = {case: compare(make, features, counts) for case, counts in cases.items()}
        pairs = [np.random.default_rng(seed).permutation(n_classes)[:2].tolist() for seed in range(PAIRS)]
        found["1 each of two classes"] = np.mean([compare(make, features, [1, 1], pair) for pair in pairs], 0).tolist()
        for case, values in found.items():
            percents: list[JSON] = [round(value, 1) for value in values]
            rows.append(
                {"network": name, "case": case, "rda": percents[:-2], "plain": percents[-2], "ncm": percents[-1]}
            )
            print(rows[-1], flush=True)
        means.append(np.mean(list(found.values()), 0))
        learner = make(RDA)
        strengths[name] = round(strength(learner, features(learner)[0]), 1)
    overall = np.mean(means, 0)
    mean: list[JSON] = [round(float(value), 2) for value in overall]
    keep(
        args.out / "few_classes.json", "python benchmarks/few_classes.py", benches[0].bank,
        halves=[*HALVES], best=HALVES[int(overall[: len(HALVES)].argmax())], mean=mean[:-2], mean_plain=mean[-2],
        mean_ncm=mean[-1], strength=strengths, rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
