"""DSR and its ablations on CIFAR-100, 60+4x10, order 0, on the cached features of a given base network.

    python benchmarks/dsr_cifar100.py --weights BASE.safetensors --data FOLDER --dim 512
    python benchmarks/dsr_cifar100.py --weights PSEUDO_BASE.safetensors --backbone tiny_resnet18 --pseudo --data FOLDER

The projection is trained on the base features (one view, ``--objective``, ``--head-epochs``, one cycle) and shared by
all variants that train it alike; each variant then learns the ten sessions. Feeding cached features gives the answers
that images would give. With ``--pseudo`` the whole problem is made of base classes' training images only (see
:mod:`nocl.experiments.base_copy`): that is where settings may be chosen. Finished variants are kept and not run again.
"""

import argparse
import copy
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from nocl import data, metrics, nets
from nocl.data.features import extract, tensors
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.learner import FrozenLearner
from nocl.methods.dsr import DSR
from nocl.methods.dsr_calibrated import DSRCalibrated
from nocl.methods.ncm import NCM
from nocl.plumbing.files import write_json
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.results import environment
from nocl.streams import class_incremental

STAGES = (1, 2, 3, 4)  # cached with the features of the rivals' benchmarks; a learner takes its own
PAPER: dict[str, JSON] = DSR.presets["paper"]
# DSRCalibrated set back to the paper's DSR, to add one ingredient at a time
PLAIN: dict[str, JSON] = {
    "stages": None,
    "covariance": "diagonal",
    "upper": "align",
    "outer_lr": 0.01,
    "outer_momentum": 0.0,
    "outer_clip": 0.0,
}
DEPTHS: list[JSON] = [2, 3, 4]
VARIANTS: dict[str, dict[str, JSON] | None] = {  # the most wanted first
    "ncm (tukey)": None,
    "T=0": {"iterations": 0},
    "dsr": {},
    "calibrated": {"stages": DEPTHS},
    "no lower level": {"refine": False},
    "no upper level": {"align": False},
    "paper": {**PAPER},
    "full covariance": {**PLAIN, "covariance": "full"},
    "shrunk covariance": {**PLAIN, "covariance": "shrunk"},
    "several stages": {**PLAIN, "stages": DEPTHS},
    "several stages, T=0": {**PLAIN, "stages": DEPTHS, "iterations": 0},
    "calibrated, last stage": {"stages": None},
    "calibrated, diagonal covariance": {"stages": DEPTHS, "covariance": "diagonal"},
    "calibrated, alignment": {"stages": DEPTHS, "upper": "align"},
    "calibrated, no lower level": {"stages": DEPTHS, "refine": False},
    "base_std_extra 0.05 (official)": {"base_std_extra": 0.05},
    "paper, phi exp": {**PAPER, "phi": "exp"},
    "paper, inner_lr 1": {**PAPER, "inner_lr": 1.0},
    "paper, inner_lr 10": {**PAPER, "inner_lr": 10.0},
    "outer_lr 0.1": {"outer_lr": 0.1},
    "power 0.75": {"power": 0.75},
    "K=80": {"samples": 80},
    "T=60": {"iterations": 60},
}


class Features:
    """All features of a data set in memory, cut into the stream's blocks."""

    def __init__(self, args: argparse.Namespace) -> None:
        whole = data.load("cifar100", root=args.data)
        stream = class_incremental(whole)
        if args.pseudo:
            stream = class_incremental(base_only(whole, stream.blocks[0]), partition=PARTITION)
        bank = extract(stream.data, args.weights, cache=args.cache, backbone=args.backbone, stages=STAGES)
        self.blocks, self.described = stream.blocks, stream.describe()
        network = nets.build(args.backbone)
        self.widths = [network.feature_dim(32, [stage]) for stage in STAGES]
        (self.z, self.y), (self.test, self.test_y) = tensors(bank.train), tensors(bank.test)

    def of(self, learner: FrozenLearner, rows: Tensor) -> Tensor:
        """The stages that this learner uses, side by side; by default the last."""
        parts = rows.split(self.widths, dim=1)
        return torch.cat([parts[stage - 1] for stage in learner.stages or STAGES[-1:]], dim=1)

    def session(self, index: int, learner: FrozenLearner) -> tuple[Tensor, Tensor]:
        """Training features of one block, shuffled."""
        rows = torch.isin(self.y, torch.tensor(self.blocks[index])).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator(0, "session", index))]
        return self.of(learner, self.z[rows]), self.y[rows]

    def row(self, learner: FrozenLearner) -> list[float]:
        """Accuracy of each block learned so far."""
        seen = torch.isin(self.test_y, learner.classes_)
        z, y = self.of(learner, self.test[seen]), self.test_y[seen]
        right = torch.cat([learner.classes_[learner.score(part).argmax(1)] for part in z.split(500)]) == y
        done = [block for block in self.blocks if set(block) <= set(learner.classes_.tolist())]
        return [
            float(torch.stack([right[y == c].double().mean() for c in block]).mean()) for block in done
        ]  # classes count alike


def teach(learner: FrozenLearner, features: Features) -> dict[str, JSON]:
    """The whole protocol on features; accuracy matrix, scores and seconds of each session."""
    learner.meet(features.blocks[0])
    z, y = features.session(0, learner)
    learner.fit_base_features(zip(z.split(500), y.split(500)))
    matrix, seconds = [features.row(learner)], []
    for index in range(1, len(features.blocks)):
        z, y = features.session(index, learner)
        start = perf_counter()
        for part, labels in zip(z.split(10), y.split(10)):
            learner.learn(part, labels)
        learner.end_session()
        seconds.append(round(perf_counter() - start, 2))
        matrix.append(features.row(learner))
    sizes = [len(block) for block in features.blocks]
    final = metrics.last([[*row, *[None] * (len(sizes) - len(row))] for row in matrix], sizes)
    return {
        "scores": {name: round(100 * float(value), 2) for name, value in final._asdict().items() if value is not None},
        "accuracy": [[round(value, 4) for value in row] for row in matrix],
        "online_seconds": seconds,
        "log": learner.log_,
    }  # type: ignore[return-value]


def build(params: dict[str, JSON] | None, args: argparse.Namespace, projections: dict[str, Any]) -> FrozenLearner:
    """A learner, with the projection that an earlier variant trained alike."""
    if params is None:
        return NCM(backbone=args.backbone, seed=args.seed)
    recipe: dict[str, JSON] = {
        "objective": args.objective, "head_epochs": args.head_epochs, "schedule": "onecycle",
        "lr": 0.05, "weight_decay": 5e-4,
    }  # fmt: skip
    own = params.get("recipe")
    recipe |= own if isinstance(own, dict) else {}
    cls = DSRCalibrated if "stages" in params else DSR
    learner = cls(**{**params, "backbone": args.backbone, "dim": args.dim, "recipe": recipe, "seed": args.seed})  # type: ignore[arg-type]
    alike = json.dumps([learner.full_recipe.heads_to_json(), learner.stages])
    if alike not in projections:
        z, y = args.features.session(0, learner)
        learner.meet(args.features.blocks[0])
        learner.fit_projection(z, y, learner.full_recipe)
        projections[alike] = copy.deepcopy((learner.projection.state_dict(), learner.log_))  # as yet without sessions
    state, log = projections[alike]
    learner.projection.load_state_dict(state)
    learner.log_ = copy.deepcopy(log)
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--backbone", default="reduced_resnet18")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets; default NOCL_DATA")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dsr"))
    parser.add_argument("--name", default=None, help="name of the result file")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--objective", default="ce")
    parser.add_argument("--head-epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pseudo", action="store_true", help="base classes only: for choosing settings")
    parser.add_argument("--only", nargs="*", default=None, help="variants to run")
    args = parser.parse_args()
    args.features = Features(args)
    path = args.out / f"{args.name or ('pseudo' if args.pseudo else 'order0')}-d{args.dim}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"variants": {}}
    shown = [Path(arg).name for arg in sys.argv[1:]]  # folders differ from machine to machine
    command = f"python benchmarks/dsr_cifar100.py {' '.join(shown)}"
    result |= {"weights": args.weights.name, "stream": args.features.described, "seed": args.seed}
    made: dict[str, JSON] = {"command": command, "environment": environment()}
    projections: dict[str, Any] = {}
    for name, params in VARIANTS.items():
        if name in result["variants"] or (args.only is not None and name not in args.only):
            continue
        start = perf_counter()
        learner = build(params, args, projections)
        outcome = teach(learner, args.features)
        result["variants"][name] = {"params": learner.get_params(), **outcome, **made}
        write_json(path, result)
        print(f"{name:36} {outcome['scores']}  ({perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
