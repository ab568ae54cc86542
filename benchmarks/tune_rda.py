"""Choose rda's settings on the base classes' training images alone; no novel class and no test image is read.

    python benchmarks/tune_rda.py --data FOLDER

The 60 base classes of order 0 are split into 36 pseudo-base and 24 pseudo-novel ones, a fifth of each class's images
is held out, and a network is trained on the pseudo-base part only (``base_copy``). This is done twice with different
splits of the classes (``SPLITS``), because one split cannot tell settings apart that differ by half a point. Settings
are compared by what users do: pseudo-novel classes of 5, 20, 100 and of all their images beside the old ones, all
held-out images asked. The measure is the mean of Acc (old classes included) and of the harmonic mean of old and novel
ones over these counts. The search starts from plain settings (last stage, no transform), takes the best value of one
parameter after another, and goes round again until nothing changes, so neither the start nor a margin can carry in a
preference from elsewhere.
``prior`` is counted in images per feature value so that it carries over to another width.

``caution`` says what old classes may lose for a new one of one image. That is a choice and not a maximum, so it is
made last and by a rule: the least caution with which old classes lose at most 1 point (``MAY_LOSE``) to the first
picture of another one: 9 and 23 pseudo-novel classes of 30 images, with the networks of both splits and with
EfficientNet-Lite0, and the 36 pseudo-base classes with all their images; each on its own. The whole curve is written
beside the result, after one, three and ten pictures, with nearest means on the same images.
"""

import argparse
import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bank import STAGES, Bank, keep, parser, percent
from nocl import data, nets
from nocl.data import Dataset
from nocl.data.features import extract
from nocl.experiments.base_copy import PARTITION, base_only
from nocl.methods.ncm import NCM
from nocl.methods.rda.method import RDA
from nocl.metrics import Scores
from nocl.plumbing.files import write_json, write_tensors
from nocl.plumbing.types import JSON
from nocl.stats.linalg import Cached
from nocl.streams import Stream, class_incremental

RECIPE: dict[str, JSON] = {
    "lr": 0.1, "schedule": "onecycle", "weight_decay": 5e-4, "augment": "crop_flip", "normalize": True,
}  # fmt: skip
START: dict[str, JSON] = {
    "stages": [4], "power": 1.0, "prior": 3.0, "ridge": 0.001, "caution": 1.0, "degrees": 30.0,
}  # fmt: skip
ROUNDS: list[dict[str, list[JSON]]] = [
    {"stages": [[4], [3, 4], [2, 3, 4], [1, 2, 3, 4], [2, 3, 4, -2, -3], [1, 2, 3, 4, -1, -2, -3]]},
    {"power": [1.0, 0.75, 0.5, 0.25]},
    {"prior": [0.5, 1.0, 2.0, 3.0, 5.0, 10.0]},
    {"ridge": [0.0001, 0.001, 0.01, 0.1]},
    {"degrees": [10.0, 30.0, 100.0]},
]
SWEEPS = 3  # at most
SPLITS = (0, 1)
SHOTS = (5, 20, 100, None)
CAUTIONS = (0.0, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
PICTURES = (1, 3, 10)
OLD, LEARNED, TESTED, DRAWS = (9, 23), 30, 50, 12  # old classes, images of each, images to ask, repetitions
MAY_LOSE = 1.0  # points: 1.5 are asked for, and other images than these will differ
EYES = "efficientnet_lite0@128"


def search(
    start: dict[str, JSON],
    rounds: Sequence[Mapping[str, Sequence[JSON]]],
    evaluate: Callable[[dict[str, JSON]], float],
    *,
    margin: float = 0.0,
) -> tuple[dict[str, JSON], list[dict[str, JSON]]]:
    """The best settings found by one round after another, and every trial with its ``value``.

    A round tries all combinations of its choices with everything else as the rounds before left it. The first that
    comes within ``margin`` of the best wins, so list the simplest first and let the margin be what chance can do.

    >>> search({"a": 0, "b": 0}, [{"a": [1, 2]}, {"b": [3]}], lambda p: p["a"] + p["b"])[0]
    {'a': 2, 'b': 3}
    """
    trials: list[dict[str, JSON]] = []
    best = dict(start)
    for choices in rounds:
        tried: list[tuple[float, dict[str, JSON]]] = []
        for values in itertools.product(*choices.values()):
            settings = {**best, **dict(zip(choices, values))}
            tried.append((evaluate(settings), settings))
            trials.append({**settings, "value": tried[-1][0]})
        enough = max(value for value, _ in tried) - margin
        best = next(settings for value, settings in tried if value >= enough)
    return best, trials


class Bench:
    """The score of any settings on the copy's features."""

    def __init__(self, bank: Bank, stream: Stream, backbone: str, origin: dict[str, JSON], cache: Path) -> None:
        self.bank, self.stream, self.backbone, self.origin = bank, stream, backbone, origin
        self.kept = cache / f"tune-{origin['key']}.json"  # an interrupted search goes on
        self.blocks = stream.blocks
        self.taught: dict[str, RDA] = {}  # statistics depend on these settings only; the others act when scoring
        # settings come up again in later sweeps
        self.found: dict[str, float] = json.loads(self.kept.read_text()) if self.kept.exists() else {}

    def learner(self, stages: JSON, power: JSON, shots: int | None) -> RDA:
        key = f"{stages} {power} {shots}"
        if key not in self.taught:
            learner = RDA(backbone=self.backbone, stages=stages, power=power, shortlist=None)  # type: ignore[arg-type]
            self.bank.teach_base(learner, self.blocks[0])
            self.taught[key] = self.bank.teach(learner, self.blocks[1:], shots, size=500)  # type: ignore[assignment]
        return self.taught[key]

    def value(self, settings: dict[str, JSON]) -> float:
        key = json.dumps(settings, sort_keys=True)
        if key not in self.found:
            self.found[key] = self.measure(settings)
            write_json(self.kept, self.found)
        return self.found[key]

    def measure(self, settings: dict[str, JSON]) -> float:
        found = self.scores(settings)
        return sum(((scores.acc or 0.0) + (scores.hm or 0.0)) / 2 for scores in found) / len(found)

    def scores(self, settings: dict[str, JSON], counts: Sequence[int | None] = SHOTS) -> list[Scores]:
        """For each of these numbers of images."""
        found = []
        for shots in counts:
            learner = self.learner(settings["stages"], settings["power"], shots)
            for name in ("prior", "ridge", "caution", "degrees"):
                setattr(learner, name, settings[name])
            learner._rule = Cached()
            found.append(self.bank.scores(learner, self.blocks))
        print(settings, *[percent(scores) for scores in found], flush=True)
        return found


def of_copy(bench: Bench) -> Tensor:
    """Features [classes, images, d] of the pseudo-novel classes, with rda's usual stages."""
    columns = bench.bank.columns(RDA(backbone=bench.backbone).stages)
    return torch.stack([bench.bank.train[_rows(bench.bank, c)][:, columns] for c in _novel(bench)])


def of_eyes(bench: Bench) -> Tensor:
    """The same images seen by EfficientNet-Lite0."""
    learner = RDA(backbone=EYES, image_size=32)
    nets.load_pretrained(learner.network, EYES)
    images = bench.stream.data.train
    found = []
    for c in _novel(bench):
        chosen = images.subset(np.flatnonzero(images.labels == c)[: LEARNED + TESTED])
        found.append(learner.features(chosen.take(np.arange(len(chosen))).x))
    return torch.stack(found)


def _novel(bench: Bench) -> list[int]:
    return [c for block in bench.blocks[1:] for c in block]


def _rows(bank: Bank, c: int) -> Tensor:
    return torch.from_numpy(np.flatnonzero(bank.train_y == c)[: LEARNED + TESTED])


def first_pictures(z: Tensor, n_old: int, settings: dict[str, JSON]) -> Tensor:
    """In percent, what the old lose and how often the new is known: [cautions, at the end nearest means; pictures; 2].

    ``z`` are features [classes, images, d].
    """
    return torch.stack([_first_pictures(z, n_old, settings, draw) for draw in range(DRAWS)]).mean(0)


def _first_pictures(z: Tensor, n_old: int, settings: dict[str, JSON], draw: int) -> Tensor:
    random = np.random.default_rng(draw)
    classes = random.permutation(len(z))[: n_old + 1]
    images = torch.stack([z[c][torch.from_numpy(random.permutation(z.shape[1]))] for c in classes])
    learners = _learners(z.shape[2], settings)
    for each in learners:
        each.learn(images[:-1, :LEARNED].flatten(0, 1), torch.arange(n_old).repeat_interleave(LEARNED))
    return _one_more(learners, images[-1], images[:, LEARNED:])


def after_base(bench: Bench, settings: dict[str, JSON]) -> Tensor:
    """The same where the pseudo-base classes, which trained the network, are the old ones with all their images."""
    bank, columns = bench.bank, bench.bank.columns(RDA(backbone=bench.backbone).stages)
    learners = _learners(len(columns), settings)
    for label, c in enumerate(bench.blocks[0]):
        z = bank.train[np.flatnonzero(bank.train_y == c)][:, columns]
        for each in learners:
            each.learn(z, torch.full((len(z),), label))
    asked = [bank.test[np.flatnonzero(bank.test_y == c)[:TESTED]][:, columns] for c in bench.blocks[0]]
    found = []
    for c in _novel(bench)[:DRAWS]:
        new = bank.test[np.flatnonzero(bank.test_y == c)[:TESTED]][:, columns]
        shown = bank.train[_rows(bank, c)][:, columns]
        found.append(_one_more(copy.deepcopy(learners), shown, torch.stack([*asked, new])))
    return torch.stack(found).mean(0)


def _learners(dim: int, settings: dict[str, JSON]) -> tuple[RDA, NCM]:
    plain = NCM(backbone=f"features:{dim}")
    given = {**settings, "stages": None, "caution": 0.0, "shortlist": None}
    return RDA(backbone=plain.backbone, **given), plain  # type: ignore[arg-type]


def _one_more(learners: tuple[RDA, NCM], shown: Tensor, asked: Tensor) -> Tensor:
    """``first_pictures`` of a class whose images are ``shown`` [images, d]; ``asked`` [classes, images, d], it last."""
    (learner, plain), new = learners, len(asked) - 1
    accuracies, taught = [], 0
    for pictures in (0, *PICTURES):
        for each in learners if pictures else ():
            each.learn(shown[taught:pictures], torch.full((pictures - taught,), new))
        taught = pictures
        answers = [*_answers(learner, asked.flatten(0, 1)), plain.score(asked.flatten(0, 1)).argmax(1)]
        accuracies.append(torch.stack([_by_class(answer, len(asked)) for answer in answers]))
    before, after = accuracies[0], torch.stack(accuracies[1:], 1)  # [methods, classes], [methods, pictures, classes]
    lost = before[:, None, :-1].mean(2) - after[:, :, :-1].mean(2)
    return torch.stack([lost, after[:, :, -1]], 2)


def _answers(learner: RDA, asked: Tensor) -> list[Tensor]:
    """With each caution, of a learner that has none."""
    means = learner._current().means
    scores, answers = learner.score(asked) + learner.payments(means), []
    for learner.caution in CAUTIONS:
        answers.append((scores - learner.payments(means)).argmax(1))
    learner.caution = 0.0
    return answers


def _by_class(answers: Tensor, n_classes: int) -> Tensor:
    """Percent right of each class; answers are in the order of the classes."""
    return 100 * (answers.view(n_classes, -1) == torch.arange(n_classes)[:, None]).double().mean(1)


def trade(found: Mapping[tuple[str, int], Tensor]) -> tuple[float, list[JSON]]:
    """The least caution with which the old classes lose no more than they may, and all curves, by network and old."""
    curves: list[JSON] = []
    for (name, n_old), results in found.items():
        for caution, (lost, new) in zip((*CAUTIONS, "ncm"), results.mT):
            row: JSON = {"network": name, "old": n_old, "caution": caution, "images": [*PICTURES]}
            curves.append({**row, "lost": _rounded(lost), "new": _rounded(new)})  # type: ignore[dict-item]
            print(curves[-1], flush=True)
    worst = torch.stack([results[:-1, 0, 0] for results in found.values()]).amax(0)
    enough = [caution for caution, lost in zip(CAUTIONS, worst.tolist()) if lost <= MAY_LOSE]
    return min(enough, default=CAUTIONS[-1]), curves


def _rounded(values: Tensor) -> list[JSON]:
    return [round(float(value), 2) for value in values]


def train(stream: Stream, backbone: str, recipe: dict[str, JSON], cache: Path) -> tuple[Path, dict[str, JSON]]:
    """The pseudo-base network as a file."""
    learner = RDA(backbone=backbone, recipe=recipe)
    learner.meet(stream.base.classes)
    origin = learner.train_network(stream.base, cache).origin
    path = cache / f"pseudo-base-{origin['key']}.safetensors"
    write_tensors(path, learner.network.state_dict(), {"classes": list(stream.base.classes)})
    return path, origin


def settle(benches: Sequence[Bench]) -> tuple[dict[str, JSON], list[JSON]]:
    """The settings that a further sweep leaves as they are, and all trials."""
    best, trials = START, []

    def value(settings: dict[str, JSON]) -> float:
        with ThreadPoolExecutor(len(benches)) as threads:
            return sum(threads.map(lambda bench: bench.value(settings), benches)) / len(benches)

    for _ in range(SWEEPS):
        before = best
        best, tried = search(before, ROUNDS, value)
        trials += [trial for trial in tried if trial not in trials]
        if best == before:
            break
    return best, [*trials]


def open_bench(whole: Dataset, split: int, args: argparse.Namespace) -> Bench:
    """A copy of the problem made of base classes, with its own network."""
    base = base_only(whole, class_incremental(whole).blocks[0])
    stream = class_incremental(base, partition=PARTITION, order_seed=split)
    path, origin = train(stream, args.backbone, {**RECIPE, "epochs": args.epochs}, args.cache)
    features = extract(stream.data, path, cache=args.cache, backbone=args.backbone, stages=STAGES)
    return Bench(Bank(features, args.backbone), stream, args.backbone, origin, args.cache)


def arguments(doc: str) -> argparse.Namespace:
    """The arguments of every benchmark on these copies."""
    wanted = parser(doc)
    wanted.add_argument("--backbone", default="reduced_resnet18")
    wanted.add_argument("--epochs", type=int, default=6)
    return wanted.parse_args()


def main() -> None:
    args = arguments(__doc__)
    whole = data.load("cifar100", root=args.data)
    benches = [open_bench(whole, split, args) for split in SPLITS]
    best, trials = settle(benches)
    sources = {f"{args.backbone}, split {split}": of_copy(bench) for split, bench in zip(SPLITS, benches)}
    sources[EYES] = of_eyes(benches[0])
    found = {(name, n_old): first_pictures(z, n_old, best) for name, z in sources.items() for n_old in OLD}
    for split, bench in zip(SPLITS, benches):
        found[f"{args.backbone}, split {split}, base session", len(bench.blocks[0])] = after_base(bench, best)
    best["caution"], curve = trade(found)
    copies: list[JSON] = [{"base": bench.origin, "stream": bench.stream.describe()} for bench in benches]
    command = f"python benchmarks/tune_rda.py --backbone {args.backbone} --epochs {args.epochs}"
    keep(args.out / "tune_rda.json", command, benches[0].bank, best=best, trials=trials, caution=curve, copies=copies)


if __name__ == "__main__":
    main()
