"""Choose the bound of what a class of few images pays under rda, on training images of the base classes alone.

    python benchmarks/payments.py --data FOLDER

Old classes of 15 to 60 images, then one more with its first pictures: what the old ones lose and how often the new one
is recognised, by the bound of what it pays more than the others (in units of the temperature and of ``caution``) and by
the power of its number of images that the bound falls with. Photographs of base classes of order 0 through kept
networks that were not trained on them and through EfficientNet-Lite0, and glyphs through the same; nearest means on the
last stage of each beside them. The rule: of the bounds and powers with which old classes of photographs lose at
most 1 point to the first picture and 0.67 to the third, two thirds of what is allowed, on every network and number of
old classes, those with which the new class is recognised most often on average over one to three pictures. Writes
payments.json; ``--again`` only chooses anew from its rows.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bank import keep, parser
from nocl import data
from nocl.data.features import trained_classes
from nocl.experiments.networks import KEPT
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA, Bounds
from nocl.nets import PRETRAINED
from nocl.plumbing.files import write_json
from nocl.streams import class_incremental
from temperature import EYES, GLYPHS, SMALL, features

FILES = ("cifar100-60-order1-ce24", "cifar100-40-order0-ce14")
NONE = 1e9
BOUNDS: tuple[tuple[float, float], ...] = (
    (NONE, 1.5), *[(bound, power) for power in (1.0, 1.5, 2.0) for bound in (1.25, 1.5, 1.75, 2.0, 2.5)],
)  # fmt: skip
PICTURES = (1, 2, 3, 5, 10)
LEARNED, TESTED = 60, 20
OLD = ((9, 30), (39, 15))  # classes, images of each; fewer classes where a network knows most of them
MORE = (39, 60)  # through EfficientNet alone, where so many still leave much of the shared covariance unknown
DRAWS = 8
MAY_LOSE = {1: 1.0, 3: 0.67}  # points, by pictures: two thirds of 1.5 and 1
LAST = {440: slice(160, 320), 1712: slice(432, 1712)}  # where the values of the last stage are


def views(root: Path | None) -> dict[tuple[str, str], Tensor]:
    """Features [classes, images, d], by source and network."""
    whole, glyphs = data.load("cifar100", root=root), data.load(GLYPHS)
    drawn = np.random.default_rng(0).permutation(glyphs.n_classes)[:40].tolist()
    found = {}
    for name in (*FILES, EYES):
        weights, backbone = (Path(PRETRAINED), EYES) if name == EYES else (KEPT / f"{name}.safetensors", SMALL)
        known = set(trained_classes(weights) or ())
        strange = [c for c in class_incremental(whole).blocks[0] if c not in known][:40]
        found["photographs", name] = features(whole.train, strange, weights, backbone, "auto", LEARNED + TESTED)
        found[GLYPHS, name] = features(glyphs.train, drawn, weights, backbone, "auto", LEARNED + TESTED)
    return found


def one_more(z: Tensor, n_old: int, learned: int, draw: int) -> Tensor:
    """Points lost and percent recognised [bounds, at the end nearest means; pictures; 2].

    ``z`` are features [classes, images, d].
    """
    random = np.random.default_rng(draw)
    chosen = z[random.permutation(len(z))[: n_old + 1]][:, torch.from_numpy(random.permutation(z.shape[1]))]
    asked, shown = chosen[:, -TESTED:].flatten(0, 1), chosen[:, :-TESTED]
    last = LAST[z.shape[2]]
    learner = RDA(backbone=f"features:{z.shape[2]}", stages=None, shortlist=None)
    plain = NCM(backbone=f"features:{last.stop - last.start}")
    old = shown[:-1, :learned].flatten(0, 1), torch.arange(n_old).repeat_interleave(min(learned, shown.shape[1]))
    found, taught = [], 0
    for pictures in (0, *PICTURES):
        more, y = (shown[-1, taught:pictures], torch.full((pictures - taught,), n_old)) if pictures else old
        learner.learn(more, y)
        plain.learn(more[:, last], y)
        taught = pictures
        means = learner._current().means
        scores = learner.score(asked) + learner.payments(means)
        answers = [(scores - learner.payments(means, Bounds(*bound, known=NONE))).argmax(1) for bound in BOUNDS]
        answers.append(plain.score(asked[:, last]).argmax(1))
        right = [answer.view(-1, TESTED) == torch.arange(n_old + 1)[:, None] for answer in answers]
        found.append(100 * torch.stack(right).double().mean(2))  # [bounds + 1, classes]
    before, after = found[0][:, None, :-1], torch.stack(found[1:], 1)
    return torch.stack([before.mean(2) - after[:, :, :-1].mean(2), after[:, :, -1]], 2)


def choose(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The bound and power of the rule, from the rows of photographs."""
    found = {}
    for bound in BOUNDS:
        own = [row for row in rows if row["source"] != GLYPHS and (row["bound"], row["power"]) == bound]
        lost, known = (np.array([row[name] for row in own]) for name in ("lost", "recognised"))
        if all((lost[:, PICTURES.index(n)] <= most).all() for n, most in MAY_LOSE.items()):
            found[bound] = float(known[:, : PICTURES.index(3) + 1].mean())
    return max(found, key=lambda bound: found[bound])


def measure(root: Path | None) -> list[dict[str, Any]]:
    """A row for each source, network, number of old classes, bound and power."""
    rows: list[dict[str, Any]] = []
    for (source, network), z in views(root).items():
        for n_old, learned in (*OLD, MORE) if network == EYES else OLD:
            if learned > z.shape[1] - TESTED:
                continue
            old = min(n_old, len(z) - 1)
            found = torch.stack([one_more(z, old, learned, draw) for draw in range(DRAWS)]).mean(0)
            about = {"source": source, "network": network, "old": old, "learned": learned, "draws": DRAWS}
            for (bound, power), result in zip((*BOUNDS, ("ncm", None)), found):
                lost, known = ([round(float(v), 2) for v in values] for values in result.T)
                rows.append({**about, "bound": bound, "power": power, "lost": lost, "recognised": known})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--again", action="store_true", help="choose from the rows of the file")
    args = arguments.parse_args()
    path: Path = args.out / "payments.json"
    if args.again:
        kept = json.loads(path.read_text())
        write_json(path, {**kept, "chosen": [*choose(kept["rows"])]})
        return
    rows = measure(args.data)
    command = "python benchmarks/payments.py --data FOLDER"
    keep(path, command, None, chosen=[*choose(rows)], pictures=[*PICTURES], rows=rows)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
