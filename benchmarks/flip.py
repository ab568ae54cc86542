"""What rda gains by scoring each test image and its mirror image, and what that costs.

    python benchmarks/flip.py --data FOLDER --weights NETWORK

CIFAR-100, 60+4x10, order 0: learning is the same with and without, so one learner serves both. The features of the
mirrored test images are computed once into the cache. Time is processor time of one thread for a batch of 100 images,
through the network. Writes flip.json.
"""

from dataclasses import replace
from statistics import median
from time import process_time

import numpy as np
import torch

from bank import STAGES, keep, open_bank, parser, percent
from nocl import data
from nocl.data import ImageSet
from nocl.data.features import extract, tensors
from nocl.methods.rda.method import RDA


def seconds(learner: RDA, x: torch.Tensor) -> float:
    """Median of five calls after one to warm up."""
    times = []
    for _ in range(6):
        start = process_time()
        learner.decision_function(x)
        times.append(process_time() - start)
    return median(times[1:])


def main() -> None:
    args = parser(__doc__).parse_args()
    bank, blocks = open_bank(args)
    whole = data.load("cifar100", root=args.data)
    test = whole.test.take(np.arange(len(whole.test)))
    mirrored = ImageSet.of(np.ascontiguousarray(test.x.flip(-1).numpy()), test.y.numpy())
    few = replace(whole, name="cifar100-mirrored", train=whole.train.subset(np.arange(1)), test=mirrored)
    other = tensors(extract(few, args.weights, cache=args.cache, stages=STAGES).test)[0]
    learner = RDA()
    bank.teach_base(learner, blocks[0])
    bank.teach(learner, blocks[1:], size=500)
    columns = bank.columns(learner.stages)
    plain = torch.cat([learner.score(part) for part in bank.test[:, columns].split(500)])
    both = plain + torch.cat([learner.score(part) for part in other[:, columns].split(500)])
    scores = {
        name: percent(bank.scores_of(learner.classes_[found.argmax(1)], blocks))
        for name, found in (("plain", plain), ("flip", both))
    }
    times = {}
    for name, flip in (("plain", False), ("flip", True)):
        learner.flip = flip
        times[name] = round(10 * seconds(learner, test.x[:100]), 3)
    keep(
        args.out / "flip.json", "python benchmarks/flip.py", bank,
        settings=learner.get_params(), scores=scores, milliseconds_per_image=times,
    )  # fmt: skip


if __name__ == "__main__":
    main()
