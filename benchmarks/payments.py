"""Choose the bound of what a class of few images pays under rda, on training images of the base classes alone.

    python benchmarks/payments.py --data FOLDER

Old classes of 15 to 60 images, then one more with its first pictures: what the old ones lose and how often the new one
is recognised, by the bound of what it pays more than the others (in units of the temperature and of ``caution``) and by
the power of its number of images that the bound falls with. Photographs of base classes of order 0 through kept
networks that were not trained on them and through EfficientNet-Lite0, and glyphs through the same; nearest means on the
last stage of each beside them. The rule: the least power with which the new class is recognised no less often after two
and three pictures than after one, by more than 3 points, on photographs; with it, the least bound with which their old
classes lose at most 1 point to the first picture and to the third, on every network. Writes payments.json.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import keep, parser
from nocl import data
from nocl.data.features import trained_classes
from nocl.experiments.networks import KEPT
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA
from nocl.nets import PRETRAINED
from nocl.plumbing.types import JSON
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
        answers = [(scores - learner.payments(means, *bound)).argmax(1) for bound in BOUNDS]
        answers.append(plain.score(asked[:, last]).argmax(1))
        right = [answer.view(-1, TESTED) == torch.arange(n_old + 1)[:, None] for answer in answers]
        found.append(100 * torch.stack(right).double().mean(2))  # [bounds + 1, classes]
    before, after = found[0][:, None, :-1], torch.stack(found[1:], 1)
    return torch.stack([before.mean(2) - after[:, :, :-1].mean(2), after[:, :, -1]], 2)


def choose(found: dict[tuple[str, str, int, int], Tensor]) -> tuple[float, float] | None:
    """The bound and power of the rule; None if no bound serves."""
    photographs = torch.stack([results[:-1] for key, results in found.items() if key[0] != GLYPHS])
    lost, known = photographs.unbind(-1)  # [sources, bounds, pictures]
    once, third = PICTURES.index(1), PICTURES.index(3)
    few = (lost[:, :, [once, third]] <= 1).all(2).all(0)
    steady = (known[:, :, once : third + 1].amin(2) >= known[:, :, once] - 3).all(0)
    serves = [(power, bound) for (bound, power), a, b in zip(BOUNDS, few, steady) if a and b and bound < NONE]
    return min(serves)[::-1] if serves else None


def main() -> None:
    args = parser(__doc__).parse_args()
    found: dict[tuple[str, str, int, int], Tensor] = {}
    rows: list[JSON] = []
    for (source, network), z in views(args.data).items():
        for n_old, learned in (*OLD, MORE) if network == EYES else OLD:
            if learned > z.shape[1] - TESTED:
                continue
            key = source, network, min(n_old, len(z) - 1), learned
            found[key] = torch.stack([one_more(z, key[2], learned, draw) for draw in range(DRAWS)]).mean(0)
            for (bound, power), result in zip((*BOUNDS, ("ncm", None)), found[key]):
                lost, known = ([round(float(v), 2) for v in values] for values in result.T)
                about = {"source": source, "network": network, "old": key[2], "learned": learned, "draws": DRAWS}
                rows.append({**about, "bound": bound, "power": power, "lost": lost, "recognised": known})
                print(rows[-1], flush=True)
    best = choose(found)
    command = "python benchmarks/payments.py --data FOLDER"
    keep(args.out / "payments.json", command, None, chosen=best, pictures=[*PICTURES], rows=rows)


if __name__ == "__main__":
    main()
