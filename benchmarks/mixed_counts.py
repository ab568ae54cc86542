"""Classes of very different sizes in one model: numbers of images from 1 to 500, drawn by a power law.

    python benchmarks/mixed_counts.py --data FOLDER --weights NETWORK

CIFAR-100, all 100 classes, the given 60-class network. The class of rank r among them, in an order drawn by the seed,
has 500 / r images, at least 1, so that half of them have ten or fewer. Acc is over all test images (100 of each class,
so it is the mean of the classes' accuracies too); ``few``, ``some`` and ``many`` are the classes of 1 to 9, 10 to 49
and 50 to 500 images. ``first edition`` is the rule rda had before means were uncertain: d / n_c less the squared
distance, with the same covariances. Writes mixed_counts.json.
"""

import numpy as np
import torch
from torch import Tensor

from bank import Bank, keep, open_bank, parser
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.methods.rda import RDA
from nocl.plumbing.types import JSON
from nocl.stats import linalg
from nocl.stats.class_stats import tukey

METHODS = ("rda", "first edition", "ncm", "slda", "fecam", "ranpac")
GROUPS = {"few": (1, 9), "some": (10, 49), "many": (50, 500)}


class FirstEdition(RDA):
    """score = d / n_c - (z - mean)^T Sigma_c^-1 (z - mean)."""

    def score(self, z: Tensor) -> Tensor:
        z, d = tukey(z, self.power).double(), self.feature_dim
        scores = []
        for c in range(len(self.stats)):
            root = linalg.inverse_root(self.class_covariances(torch.tensor([c])), "a class")[0]
            scores.append(d / self.stats.count[c] - ((z - self.stats.mean[c]) @ root.T).square().sum(1))
        return torch.stack(scores, 1)


def counts_of(n_classes: int, seed: int) -> list[int]:
    """How many images each class has.

    >>> sorted(counts_of(5, 0))
    [100, 125, 167, 250, 500]
    """
    rank = np.random.default_rng(seed).permutation(n_classes) + 1
    return [max(1, round(500 / r)) for r in rank.tolist()]


def measure(bank: Bank, method: str, counts: list[int]) -> dict[str, float]:
    """Accuracies in percent: of all, and of classes by their number of images."""
    learner = FirstEdition() if method == "first edition" else make(method)
    assert isinstance(learner, FrozenLearner)
    parts = [bank.batch(learner, [c], n) for c, n in enumerate(counts)]
    z, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    learner.meet(range(len(counts)))
    learner.fit_base_features(zip(z[order].split(500), y[order].split(500)))
    right = (bank.predict(learner) == bank.test_y).double()
    by_class = torch.stack([right[bank.test_y == c].mean() for c in range(len(counts))])
    sizes = torch.tensor(counts)
    found = {"acc": float(right.mean())}
    for name, (low, high) in GROUPS.items():
        found[name] = float(by_class[(sizes >= low) & (sizes <= high)].mean())
    return {name: 100 * value for name, value in found.items()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--methods", nargs="+", default=METHODS)
    arguments.add_argument("--seeds", type=int, default=3)
    args = arguments.parse_args()
    bank, _ = open_bank(args)
    rows: list[JSON] = []
    for method in args.methods:
        found = [measure(bank, method, counts_of(bank.n_classes, seed)) for seed in range(args.seeds)]
        row: dict[str, JSON] = {"method": method}
        for name in found[0]:
            values = np.array([one[name] for one in found])
            row[name], row[f"{name}_sd"] = round(float(values.mean()), 2), round(float(values.std(ddof=1)), 2)
        print(row, flush=True)
        rows.append(row)
        keep(args.out / "mixed_counts.json", "python benchmarks/mixed_counts.py", bank, seeds=args.seeds, rows=rows)


if __name__ == "__main__":
    main()
