"""How short rda's shortlist may be: images on which it gives the answer of the exhaustive search.

    python benchmarks/shortlist.py --data FOLDER --weights NETWORK

CIFAR-100, 60+4x10, order 0, after the last session, 100 classes. The exhaustive answer is found by a shortlist of m if
it is among the m best approximate scores; shown for these and, beside them, for scores under the shared covariance,
on test images and on some training images (on which the number of quadrics was chosen). Writes shortlist.json.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bank import Bank, keep, open_bank, parser
from nocl.methods.rda.method import RDA
from nocl.plumbing.types import JSON
from nocl.stats.class_stats import tukey

LENGTHS = (1, 2, 5, 10, 15, 20, 32, 50)
TRAINING_IMAGES = 4000


def places(learner: RDA, z: Tensor) -> dict[str, Tensor]:
    """Where the exhaustive answer of each image stands in either order of classes."""
    learner.shortlist = None
    best = learner.score(z).argmax(1, keepdim=True)
    rule = learner._rule._value
    assert rule is not None
    u = rule.coordinates(tukey(z, learner.power))
    distances = {"approximate": rule.rough_distances(u), "shared covariance": rule.plain_distances(u)}
    orders = {name: rule.score_of(distance) for name, distance in distances.items()}
    return {name: (scores > scores.gather(1, best)).sum(1) for name, scores in orders.items()}


def agreement(bank: Bank, blocks: Sequence[Sequence[int]], **params: JSON) -> dict[str, JSON]:
    """Per cent of images for each length."""
    learner = RDA(**params)  # type: ignore[arg-type]
    bank.teach_base(learner, blocks[0])
    bank.teach(learner, blocks[1:], size=500)
    found: dict[str, JSON] = {}
    for split, rows in (("test", bank.test), ("training", bank.train[:TRAINING_IMAGES])):
        parts = [places(learner, part) for part in rows[:, bank.columns(learner.stages)].split(500)]
        for name in parts[0]:
            place = torch.cat([part[name] for part in parts])
            found[f"{name}, {split} images"] = {
                str(m): round(100 * float((place < m).double().mean()), 3) for m in LENGTHS
            }
    print(params, found, flush=True)
    return found


def main() -> None:
    args = parser(__doc__).parse_args()
    bank, blocks = open_bank(args)
    compact = RDA.presets["compact"]
    keep(
        args.out / "shortlist.json", "python benchmarks/shortlist.py", bank,
        full=agreement(bank, blocks), compact=agreement(bank, blocks, **compact),
    )  # fmt: skip


if __name__ == "__main__":
    main()
