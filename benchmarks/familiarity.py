"""How much of what a class of no images would score belongs into rda's scores, on training images of base classes.

    python benchmarks/familiarity.py --data FOLDER

The largest score of an image says how familiar it is, and a service answers "none of these" by it. Models of 4, 10 and
16 pseudo-novel classes (those of temperature.py, seen by both networks) are asked for images of these classes and of
the other ones, which they never met. ``auroc`` is the chance that the first kind scores higher, for each share of the
score of a class of no images that is taken off; the share with the highest mean over all models is rda's. Nearest
means on the same features stand beside. Writes familiarity.json.
"""

import numpy as np
import torch
from torch import Tensor

from bank import keep
from nocl import data
from nocl.app.calibration import auc
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA
from nocl.methods.rda.rule import BACKGROUND, background
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import tukey
from tune_rda import EYES, LEARNED, SPLITS, arguments, of_copy, of_eyes, open_bench

SHARES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CLASSES, IMAGES, DRAWS = (4, 10, 16), (1, 3, 10, 30), 3


def familiarity(learner: RDA, z: Tensor) -> list[Tensor]:
    """The largest score of each image, for every share."""
    rule = learner._current()
    taken = background(rule.coordinates(tukey(z, learner.power)), rule.unmet, rule.degrees)
    largest = learner.score(z).amax(1)
    return [largest + taken * (1 - share / BACKGROUND) for share in SHARES]


def model(z: Tensor, n_classes: int, images: int, draw: int) -> list[float]:
    """AUROC of every share, and at the end of nearest means."""
    random = np.random.default_rng(draw)
    shuffled = z[random.permutation(len(z))][:, torch.from_numpy(random.permutation(z.shape[1]))]
    taught, labels = shuffled[:n_classes, :images].flatten(0, 1), torch.arange(n_classes).repeat_interleave(images)
    known, unknown = (part[:, LEARNED:].flatten(0, 1) for part in (shuffled[:n_classes], shuffled[n_classes:]))
    learner, plain = RDA(backbone=f"features:{z.shape[2]}", stages=None), NCM(backbone=f"features:{z.shape[2]}")
    learner.fit_base_features([(taught, labels)])
    plain.fit_base_features([(taught, labels)])
    found = [auc(a, b) for a, b in zip(familiarity(learner, known), familiarity(learner, unknown))]
    return [*found, auc(plain.score(known).amax(1), plain.score(unknown).amax(1))]


def main() -> None:
    args = arguments(__doc__)
    bench = open_bench(data.load("cifar100", root=args.data), SPLITS[0], args)
    rows: list[JSON] = []
    means = []
    for name, z in ((args.backbone, of_copy(bench)), (EYES, of_eyes(bench))):
        for n_classes in CLASSES:
            for images in IMAGES:
                found = np.mean([model(z, n_classes, images, draw) for draw in range(DRAWS)], 0)
                means.append(found)
                auroc = [round(float(value), 3) for value in found]
                rows.append(
                    {"network": name, "classes": n_classes, "images": images, "auroc": auroc[:-1], "ncm": auroc[-1]}
                )
                print(rows[-1], flush=True)
    overall = np.mean(means, 0)
    best = SHARES[int(overall[:-1].argmax())]
    mean: list[JSON] = [round(float(value), 4) for value in overall]
    keep(
        args.out / "familiarity.json", "python benchmarks/familiarity.py", bench.bank,
        shares=[*SHARES], best=best, mean=mean[:-1], mean_ncm=mean[-1], rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
