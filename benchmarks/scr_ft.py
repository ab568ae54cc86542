"""SCR_ft from stored features: what a memory of images is worth on a frozen network.

    python benchmarks/scr_ft.py --data FOLDER [--partition 60+2x20] [--cache CACHE]

With a frozen network SCR trains only a head, and its answers do not use the head: they are the nearest mean of the
stored images' features (:mod:`nocl.methods.scr`). So the method needs features alone, and a run costs a minute in place
of half an hour. :class:`StoredSCR` is that method with the package's reservoir, keeping features in place of images;
results are written as what they stand for, ``scr`` with preset ``ft``, and say in ``base`` how they were made. Each
kept network is run in its own class order. Writes results/partition-*/scr-ft-SIZE-orderN.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.experiments.job import Job
from nocl.experiments.networks import KEPT, kept_network
from nocl.learner import FrozenCommon, FrozenLearner
from nocl.methods.scr import SCR
from nocl.plumbing.files import write_json
from nocl.results import RunResult
from nocl.stats.memory import Reservoir

RESULTS = Path(__file__).parent / "results"
HOW = "from stored features by benchmarks/scr_ft.py"


class FeatureReservoir(Reservoir):
    """The reservoir with features in the place of images."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, 1)
        self.images = torch.zeros(size, dim)


class StoredSCR(FrozenLearner):
    """Nearest mean of stored exemplars: what SCR answers when its network is frozen."""

    stores_exemplars = True

    def __init__(self, *, memory_size: int = 1000, **common: Unpack[FrozenCommon]) -> None:
        super().__init__(**common)
        self.memory_size = memory_size
        self.memory = FeatureReservoir(memory_size, self.feature_dim)

    def learn(self, z: Tensor, y: Tensor) -> None:
        self.memory.update(z, self.columns(y), self.draw)

    def score(self, z: Tensor) -> Tensor:
        kept, columns = self.memory.images[: len(self.memory)], self.memory.columns[: len(self.memory)]
        total = torch.zeros(len(self.classes_), self.feature_dim).index_add_(0, columns, F.normalize(kept, dim=1))
        scores = F.normalize(z, dim=1) @ F.normalize(total, dim=1).T
        return scores.masked_fill(self.memory.counts(len(self.classes_)) == 0, float("-inf"))


def as_scr(result: RunResult, size: int) -> RunResult:
    """The result under the name of the method it stands for."""
    params = {**SCR(memory_size=size, freeze_backbone=True, seed=result.seed).get_params(), "backbone": "features:160"}
    return replace(result, method="scr", params=params, base={**result.base, "how": HOW})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--networks", type=Path, default=KEPT)
    parser.add_argument("--cache", type=Path, help="where features are kept; default the user's cache")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--partition", default="60+2x20")
    args = parser.parse_args()
    folder = RESULTS / f"partition-{args.partition.replace('+', '-').replace('x', '-')}"
    for order in range(args.orders):
        network = kept_network(args.networks, "cifar100", args.partition, order)
        if network is None:
            print(f"no kept network of class order {order} for {args.partition}")
            continue
        for size in (1000, 2000):
            job = Job(
                "scr_ft:StoredSCR", {"memory_size": size}, dataset="cifar100", partition=args.partition, seed=order,
                root=None if args.data is None else str(args.data), network_from=str(network),
                feature_cache=None if args.cache is None else str(args.cache),
            )  # fmt: skip
            found = as_scr(job.run(), size)
            write_json(folder / f"scr-ft-{size}-order{order}.json", found.to_json())
            print(order, size, *(round(100 * float(v or 0), 1) for v in found.last), flush=True)


if __name__ == "__main__":
    main()
