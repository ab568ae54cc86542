"""Choose what a lone new class pays under rda after a base session, on training images of the base classes alone.

    python benchmarks/payments_after_base.py --data FOLDER

Two copies of the problem made of base classes (``base_copy``): the old classes are 36 that trained a network, with all
their images, and the images asked were held out of that training. The networks are of different strength (16 and 6
epochs), because what a class of few images pays grows with how far apart the old classes lie. One of the other 24
classes comes with its first pictures: what the old ones lose and how often it is recognised, by the bound in
temperatures, the number of images that halves it, and the share of caution's guard that is left; nearest means on the
last stage beside them. The rule: of the settings with which old classes lose at most 1 point to the first and to the
third picture on both copies, the one with which the new class is recognised most often, on average over both copies and
one, three and ten pictures. Writes payments_after_base.json; ``--again`` only chooses anew from its rows.
"""

import argparse
import copy
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bank import LAST, keep, parser
from nocl import data
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA, Bounds
from nocl.plumbing.files import write_json
from tune_rda import Bench, open_bench

COPIES = ((0, 16), (1, 6))  # split of the base classes, epochs of its network
KNOWN, HALVED, GUARD = (1.7, 1.9, 2.0, 2.1, 2.2, 2.3, 2.5), (1.5, 2.0, 2.5, 3.0), (0.0, 1 / 12, 1 / 8, 1 / 6, 1 / 4)
SETTINGS = [Bounds(known=k, halved=h, guard=g) for k, h, g in itertools.product(KNOWN, HALVED, GUARD)]
PICTURES = (1, 3, 10, 30)
NEW = 12  # pseudo-novel classes that come alone, one after the other
MAY_LOSE = {1: 1.0, 3: 1.0}  # points, by pictures
COUNTED = (1, 3, 10)


def lone_classes(bench: Bench) -> Tensor:
    """Points lost and percent recognised [settings, at the end nearest means; pictures; 2], mean over new classes."""
    learner, plain = RDA(backbone="features:440", stages=None, shortlist=None), NCM(backbone="features:160")
    stages = bench.bank.columns(RDA(backbone=bench.backbone).stages)
    for label, c in enumerate(bench.blocks[0]):
        z = bench.bank.train[np.flatnonzero(bench.bank.train_y == c)]
        teach(learner, plain, bench, z, label, stages)
    asked = [bench.bank.test[np.flatnonzero(bench.bank.test_y == c)] for c in bench.blocks[0]]
    novel = [c for block in bench.blocks[1:] for c in block][:NEW]
    return torch.stack([one_more(bench, *copy.deepcopy((learner, plain)), asked, c, stages) for c in novel]).mean(0)


def teach(learner: RDA, plain: NCM, bench: Bench, z: Tensor, label: int, stages: Tensor) -> None:
    y = torch.full((len(z),), label)
    learner.learn(z[:, stages], y)
    plain.learn(z[:, bench.bank.columns([LAST])], y)


def one_more(bench: Bench, learner: RDA, plain: NCM, asked: Sequence[Tensor], new: int, stages: Tensor) -> Tensor:
    """The same for one new class; ``asked`` are the held-out images of the old ones."""
    shown = bench.bank.train[np.flatnonzero(bench.bank.train_y == new)]
    every = [*asked, bench.bank.test[np.flatnonzero(bench.bank.test_y == new)]]
    labels = torch.arange(len(every)).repeat_interleave(torch.tensor([len(each) for each in every]))
    z, found, taught = torch.cat(every), [], 0
    for pictures in (0, *PICTURES):
        if pictures:
            teach(learner, plain, bench, shown[taught:pictures], len(asked), stages)
        taught, means = pictures, learner._current().means
        scores = learner.score(z[:, stages]) + learner.payments(means)
        answers = [(scores - learner.payments(means, bounds)).argmax(1) for bounds in SETTINGS]
        answers.append(plain.score(z[:, bench.bank.columns([LAST])]).argmax(1))
        right = 100 * (torch.stack(answers) == labels).double()
        found.append(torch.stack([right[:, labels < len(asked)].mean(1), right[:, labels == len(asked)].mean(1)], 1))
    before, after = found[0][:, None, 0], torch.stack(found[1:], 1)  # [settings, 1], [settings, pictures, 2]
    return torch.stack([before - after[:, :, 0], after[:, :, 1]], 2)


def choose(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The setting of the rule."""
    found = {}
    for bounds in SETTINGS:
        own = [row for row in rows if row.get("setting") == [bounds.known, bounds.halved, round(bounds.guard, 4)]]
        lost, known = (np.array([row[name] for row in own]) for name in ("lost", "recognised"))
        if all((lost[:, PICTURES.index(n)] <= most).all() for n, most in MAY_LOSE.items()):
            found[bounds] = float(known[:, [PICTURES.index(n) for n in COUNTED]].mean())
    best = max(found, key=lambda bounds: found[bounds])
    return {"known": best.known, "halved": best.halved, "guard": best.guard}


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    whole, rows = data.load("cifar100", root=args.data), []
    for split, args.epochs in COPIES:
        bench = open_bench(whole, split, args)
        names: list[Any] = [[b.known, b.halved, round(b.guard, 4)] for b in SETTINGS]
        for setting, result in zip((*names, "ncm"), lone_classes(bench)):
            lost, known = ([round(float(v), 2) for v in values] for values in result.T)
            rows.append({"split": split, "epochs": args.epochs, "setting": setting, "lost": lost, "recognised": known})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--again", action="store_true", help="choose from the rows of the file")
    args = arguments.parse_args()
    args.backbone, path = "reduced_resnet18", args.out / "payments_after_base.json"
    if args.again:
        kept = json.loads(path.read_text())
        write_json(path, {**kept, "chosen": choose(kept["rows"])})
        return
    rows, command = measure(args), "python benchmarks/payments_after_base.py --data FOLDER"
    keep(path, command, None, chosen=choose(rows), pictures=[*PICTURES], rows=rows)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
