"""Choose what a class of few images pays under rda, on training images of the base classes alone.

    python benchmarks/first_pictures_of_base.py --data FOLDER --precision bf16-mixed

One new class beside old ones, with its first pictures: what the old ones lose and how often the new one is recognised.
Three to 36 old classes of 3 to 400 images, in four situations: base classes of order 0 through kept networks that were
not trained on them; the ten of these that are most alike, each once the new one; the same through EfficientNet-Lite0;
and after a base session, on two copies of the problem made of base classes (``base_copy``), whose networks of 16 and 6
epochs were trained on the old classes, with images asked that were held out of that training. Nearest means on the last
stage of each beside them.

Chosen are ``caution``, the numbers of ``Paying``, and ``ALIKE``, the share of what own shapes changed that is added to
the scores of classes without. The rule: the new class is to be recognised as often as can be, on average over
situations and one, three, ten and thirty pictures, where what falls short of nearest means counts twice. Old classes
are to lose at most 1.2 points to the first picture, 0.85 to the third (1.5 and 1 are allowed, and other images will
differ) and 2 to the tenth and the thirtieth, or what nearest means lose, if that is more; a point beyond it in any one
situation counts as three points that the new class is recognised less often in all. Writes first_pictures_of_base.json
with every setting; ``--again`` only chooses anew from it.
"""

import argparse
import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bank import keep, parser
from nocl import data
from nocl.data.features import trained_classes
from nocl.experiments.networks import KEPT
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA
from nocl.methods.rda.payments import Paying, paid
from nocl.methods.rda.rule import ALIKE, NORMAL
from nocl.methods.rda.temperature import temperature
from nocl.nets import PRETRAINED
from nocl.plumbing.files import write_json
from nocl.pretrain.devices import PRECISIONS, Compute, computing
from nocl.stats.class_stats import tukey
from nocl.streams import class_incremental
from temperature import EYES, SMALL, features
from tune_rda import open_bench

PICTURES = (1, 2, 3, 5, 10, 30)
ALIKES, CAUTIONS = (0.0, 0.75, 1.0), (0.9, 1.0, 1.1)
BESIDE_FEW, POWERS, HALVED = (3.0, 4.0, 5.0), (0.125, 0.25, 0.5), (2.0, 3.0, 4.0)
MORE = [(ALIKE, caution, *Paying()) for caution in (0.5, 0.7, 0.8, 1.2, 1.3, 1.5, 1.7, 2.0)]  # the curve of caution
SETTINGS = [*itertools.product(ALIKES, CAUTIONS, BESIDE_FEW, POWERS, HALVED), *MORE]
NAMES = ("alike", "caution", "beside_few", "power", "halved")
MAY_LOSE, WEIGHT = {1: 1.2, 3: 0.85, 10: 2.0, 30: 2.0}, 3.0  # points, by pictures
COUNTED = (1, 3, 10, 30)
TESTED = 50  # images asked of each class
LAST = {440: slice(160, 320), 1712: slice(432, 1712)}  # where the values of the last stage are


class Case(NamedTuple):
    """Old classes x images, and how many new ones come, each alone, in each of several draws.

    ``close``: among the ten classes whose means lie nearest to one another; each of the first ``new`` is the new one.
    """

    old: int
    images: int
    new: int
    draws: int
    close: bool = False


FEW, CLOSE = (Case(3, 3, 3, 16), Case(5, 5, 3, 12)), (Case(4, 30, 5, 2, True), Case(9, 30, 10, 1, True))
CASES: dict[str, tuple[Case, ...]] = {
    "cifar100-60-order1-ce24": (
        *FEW, *CLOSE, Case(9, 200, 10, 1, True),
        Case(5, 30, 3, 8), Case(9, 30, 3, 8), Case(23, 200, 3, 5), Case(23, 400, 3, 3),
    ),
    "cifar100-40-order0-ce24": (
        *FEW, *CLOSE, Case(9, 200, 10, 1, True), Case(9, 30, 3, 8), Case(17, 400, 3, 5),
    ),
    EYES: (
        *(few._replace(draws=4) for few in FEW), *CLOSE, Case(5, 30, 4, 4), Case(9, 30, 4, 4),
        Case(36, 15, 4, 2), Case(36, 60, 4, 2), Case(36, 200, 4, 2),
    ),
}  # fmt: skip
COPIES = ((0, 16), (1, 6))  # split of the base classes, epochs of its network
AFTER_BASE = Case(36, 400, 24, 1)


class Shown(NamedTuple):
    """One new class after so many pictures: how its score compares with the best of the old ones, before it pays."""

    behind: Tensor  # [N] float64, best score of an old class less that of the new one
    changed: Tensor  # [N] what own shapes changed in that best score, times what the new class lacks
    right: Tensor  # bool [old images], whether the old classes' images are answered right without it
    pays: Tensor  # [settings] what it pays


def draws(z: Tensor, case: Case, *, trained: bool) -> Iterator[Tensor]:
    """Classes and images in a new order; where a network was trained on the first ones, these stay the old ones."""
    for draw in range(case.draws):
        random = np.random.default_rng(draw)
        if trained:
            yield z[np.concatenate([np.arange(case.old), case.old + random.permutation(len(z) - case.old)])]
        elif case.close:
            group = nearest(z, 10)
            for new in range(case.new):
                others = random.permutation(np.delete(np.arange(10), new))[: case.old]
                yield group[[*others, new]][:, torch.from_numpy(random.permutation(z.shape[1]))]
        else:
            yield z[random.permutation(len(z))][:, torch.from_numpy(random.permutation(z.shape[1]))]


def nearest(z: Tensor, n: int) -> Tensor:
    """Of z [classes, images, d] the class whose n - 1 nearest ones lie nearest to it, and these."""
    means = tukey(z.flatten(0, 1), 0.5).view_as(z).mean(1)
    means = means / means.std(0).clamp_min(1e-6)
    near = torch.cdist(means, means).topk(n, largest=False)
    return z[near.indices[near.values.sum(1).argmin()]]


def one_more(z: Tensor, case: Case) -> Iterator[tuple[list[Shown], Tensor]]:
    """Each new class beside the old ones: after each number of pictures; and with nearest means, [pictures; lost, new].

    ``z`` are features [classes, images, d], the old classes first, of which the last images are asked.
    """
    last, labels = LAST[z.shape[2]], torch.arange(case.old).repeat_interleave(case.images)
    learner = RDA(backbone=f"features:{z.shape[2]}", stages=None, shortlist=None)
    plain = NCM(backbone=f"features:{last.stop - last.start}")
    old = z[: case.old, : case.images].flatten(0, 1)
    learner.fit_base_features(zip(old.split(500), labels.split(500)))
    plain.learn(old[:, last], labels)
    for new in z[case.old : case.old + case.new]:  # one, of close ones
        yield pictures(copy.deepcopy(learner), copy.deepcopy(plain), z[: case.old, -TESTED:], new)


def pictures(learner: RDA, plain: NCM, asked: Tensor, new: Tensor) -> tuple[list[Shown], Tensor]:
    """The same of one new class, whose features are ``new`` [images, d]."""
    n_old, last, taught = len(asked), LAST[new.shape[1]], 0
    z = torch.cat([asked.flatten(0, 1), new[-TESTED:]])
    labels = torch.arange(n_old + 1).repeat_interleave(TESTED)
    shown, by_means = [], [plain.score(z[:, last]).argmax(1) == labels]
    for n in PICTURES:
        more, y = new[taught:n], torch.full((n - taught,), n_old)
        learner.learn(more, y)
        plain.learn(more[:, last], y)
        taught = n
        shown.append(compare(learner, z, labels))
        by_means.append(plain.score(z[:, last]).argmax(1) == labels)
    right = 100 * torch.stack(by_means).double().view(len(by_means), -1, TESTED).mean(2)  # [1 + pictures, classes]
    old = right[:, :-1].mean(1)
    return shown, torch.stack([old[0] - old[1:], right[1:, -1]], 1)


def compare(learner: RDA, z: Tensor, labels: Tensor) -> Shown:
    rule = learner._derive()
    rule.offset.zero_()
    lacking = float(rule.lacking[-1]) / ALIKE
    rule.lacking.zero_()
    u = rule.coordinates(tukey(z, learner.power))
    own, alone = rule._class_scores(u, None).double(), rule.score_of(rule.plain_distances(u)).double()
    best, shaped = own[:, :-1].max(1), rule.kind[:-1] != NORMAL
    changed = torch.zeros_like(best.values)
    if bool(shaped.any()):
        changed = own[:, :-1][:, shaped].amax(1) - alone[:, :-1][:, shaped].amax(1)
    unknown, pays = learner._shared().unknown, []
    usual = temperature(float(unknown), rule.means.squared_length)
    for _, caution, *numbers in SETTINGS:
        paying = caution * paid(rule.means, rule.count, unknown, usual, Paying(*numbers))
        pays.append(paying[-1] - paying[:-1].mean())
    right = (best.indices == labels)[:-TESTED]
    return Shown(best.values - own[:, -1], lacking * changed, right, torch.stack(pays))


def lost_and_new(shown: Shown) -> Tensor:
    """Points that the old classes lose and percent of the new one recognised, [settings, 2]."""
    found = []
    for (alike, *_), pays in zip(SETTINGS, shown.pays):
        taken = shown.behind - alike * shown.changed < -pays
        found.append([(taken[:-TESTED] & shown.right).double().mean(), taken[-TESTED:].double().mean()])
    return 100 * torch.tensor(found)


def views(args: argparse.Namespace) -> Iterator[tuple[str, Tensor, tuple[Case, ...], bool]]:
    """Each network's name, features [classes, images, d], cases, and whether it was trained on the first classes."""
    whole = data.load("cifar100", root=args.data)
    for name, cases in CASES.items():
        weights, backbone = (Path(PRETRAINED), EYES) if name == EYES else (KEPT / f"{name}.safetensors", SMALL)
        known = set(trained_classes(weights) or ())
        strange = [c for c in class_incremental(whole).blocks[0] if c not in known][:44]
        most = max(case.images for case in cases) + TESTED
        yield name, features(whole.train, strange, weights, backbone, "auto", most), cases, False
    for split, args.epochs in COPIES:
        with computing(Compute(precision=args.precision)):
            bench = open_bench(whole, split, args)
        stages, bank = bench.bank.columns(RDA(backbone=bench.backbone).stages), bench.bank
        classes = [c for block in bench.blocks for c in block]
        learned = torch.stack([bank.train[bank.train_y == c][:, stages] for c in classes])
        asked = torch.stack([bank.test[bank.test_y == c][:, stages] for c in classes])
        name = f"split {split}, {args.epochs} epochs, its own classes"
        yield name, torch.cat([learned, asked], 1), (AFTER_BASE,), True


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each network and case: by setting, and with nearest means, [pictures] lost and recognised."""
    rows: list[dict[str, Any]] = []
    for name, z, cases, trained in views(args):
        for case in cases:
            every = [found for part in draws(z, case, trained=trained) for found in one_more(part, case)]
            ours = torch.stack([torch.stack([lost_and_new(s) for s in shown]) for shown, _ in every]).mean(0)
            means = torch.stack([found for _, found in every]).mean(0)
            about = {"network": name, **case._asdict()}
            for setting, result in zip((*SETTINGS, "ncm"), (*ours.transpose(0, 1), means)):
                lost, known = ([round(float(v), 2) for v in values] for values in result.T)
                rows.append({**about, "setting": setting, "lost": lost, "recognised": known})
            print(rows[-1], flush=True)
    return rows


def choose(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The setting of the rule."""
    by_setting: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"] if row["setting"] == "ncm" else tuple(row["setting"]), []).append(row)
    means = by_setting.pop("ncm")
    plain, kept = (np.array([row[name] for row in means]) for name in ("recognised", "lost"))
    counted, found = [PICTURES.index(n) for n in COUNTED], {}
    for setting, own in by_setting.items():
        lost, known = (np.array([row[name] for row in own]) for name in ("lost", "recognised"))
        good = known[:, counted].mean() - (plain - known)[:, counted].clip(min=0).mean()
        for i, most in ((PICTURES.index(n), most) for n, most in MAY_LOSE.items()):
            good -= WEIGHT * (lost[:, i] - kept[:, i].clip(min=most)).clip(min=0).sum()
        found[setting] = float(good)
    return dict(zip(NAMES, max(found, key=lambda setting: found[setting])))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--precision", choices=PRECISIONS, default="32-true", help="of training the copies' networks"
    )
    arguments.add_argument("--again", action="store_true", help="choose from the rows of the file")
    args = arguments.parse_args()
    args.backbone, path = SMALL, args.out / "first_pictures_of_base.json"
    if args.again:
        kept = json.loads(path.read_text())
        write_json(path, {**kept, "chosen": choose(kept["rows"])})
        return
    command = f"python benchmarks/first_pictures_of_base.py --data FOLDER --precision {args.precision}"
    rows = measure(args)
    keep(path, command, None, chosen=choose(rows), pictures=[*PICTURES], rows=rows)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
