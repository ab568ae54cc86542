"""The frozen-feature arena: many methods, partitions and class orders on identical features.

Features come from one network file and are computed once; every run then goes through :func:`nocl.run.run` as any
other, with a learner whose ``features`` hands rows on as they are. So differences between methods cannot come from
the network, and a run costs what the method costs. A method whose answer does not depend on how the stream is cut
into batches (``depends_on_batching`` is False) gets larger pieces, for speed alone.

A method that wants a projection or heads beside the network (DSR, NCM behind a projection) has them trained on the
cached features of the base classes: ``recipe.head_epochs`` over the one view each feature is of, see
:func:`nocl.pretrain.heads_on_features`. A run through images draws augmented views instead, so the two agree where the
recipe has one plain view (``ce`` without ``augment``) and one batch; results from here say ``heads`` in ``base``.

The network file knows its classes. They stay the base classes whatever the order, so that an order permutes the novel
classes; see :func:`course`.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from types import MethodType

import numpy as np
import torch
from torch import Tensor

from nocl.experiments.features import FeatureData, tensors
from nocl.experiments.job import Job, parse_settings
from nocl.experiments.linear_probe import linear_probe
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.metrics import answers_row
from nocl.plumbing.files import digest
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.pretrain import Objective, Strategy, Trained, WrongBaseError, heads_on_features, load_weights
from nocl.results import RunResult, environment, peak_memory
from nocl.run import run
from nocl.streams import Stream, parse_partition

log = logging.getLogger(__name__)
BATCH, ROWS_AT_ONCE, TESTED_AT_ONCE = 10, 500, 2000
PROBE = "joint linear probe"
ON_FEATURES = "trained on features, one view of each image"  # what a result says of such heads


@dataclass(frozen=True)
class Contender:
    """A method and the parameters in which it differs from its defaults."""

    method: str
    params: dict[str, JSON] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Contender":
        """From ``slda`` or ``slda@covariance=fixed,update=official``; values are JSON or plain text.

        ``preset`` takes the method's named settings. A wrong name is an error now, not when its turn comes.

        >>> Contender.parse("ranpac@expansion=500,ridge=0.1")
        Contender(method='ranpac', params={'expansion': 500, 'ridge': 0.1})
        """
        method, _, settings = text.partition("@")
        params = parse_settings(re.split(r",(?=[\w.]+=)", settings) if settings else [])
        preset = params.pop("preset", None)
        return cls(method, Job(method, params, preset=None if preset is None else str(preset)).chosen())


@dataclass(frozen=True)
class Course:
    """One partition in one order. The counts say how far it strays from what the network was trained for."""

    partition: str
    order: int
    blocks: tuple[tuple[int, ...], ...]
    leaked: int  # novel classes that the network was trained on
    untrained: int  # base classes that it was not


def course(
    partition: str, n_classes: int, order: int, trained: Sequence[int] | None, *, allow_leak: bool = False
) -> Course:
    """Classes of each session. Order 0 is the usual order of seed 0; others permute what comes after the base.

    The base session takes the network's own classes first. If it is smaller than they are, some come later as if
    novel: that is a leak, refused unless allowed, and counted. If it is larger, classes the network has not seen
    fill it up, a different set in each order.
    """
    sizes = parse_partition(partition, n_classes)
    usual = torch.randperm(n_classes, generator=torch.Generator().manual_seed(0)).tolist()
    known = usual[: sizes[0]] if trained is None else list(trained)
    others = [label for label in usual if label not in set(known)]
    early, late = known[: sizes[0]], [*known[sizes[0] :], *others]
    if order:
        late = [late[i] for i in torch.randperm(len(late), generator=generator(order, "arena order"))]
    edges = np.cumsum([0, *sizes]).tolist()
    everything = [*early, *late]
    blocks = tuple(tuple(everything[a:b]) for a, b in pairwise(edges))
    leaked = len(set(known) - set(blocks[0]))
    if leaked and not allow_leak:
        raise WrongBaseError(
            f"partition {partition} has {sizes[0]} base classes, but the network was trained on {len(known)}: "
            f"{leaked} of them would come again as novel; leave this partition out or allow the leak"
        )
    return Course(partition, order, blocks, leaked, len(set(blocks[0]) - set(known)))


def feature_stream(data: FeatureData, course: Course, rows_at_once: int) -> Stream:
    """The course as a stream of features. ``rows_at_once`` is no part of its description: see ``Contest``."""
    about: dict[str, JSON] = {
        "dataset": data.name,
        "options": data.options,
        "fingerprint": data.fingerprint,
        "partition": course.partition,
        "order_seed": course.order,
        "batch_size": BATCH,
        "base_batch_size": 100,
        "drop_last": False,
        "features": data.origin,
        "novel_classes_in_network": course.leaked,
        "base_classes_not_in_network": course.untrained,
    }
    return Stream(
        data, course.blocks, about, seed=course.order, batch_size=rows_at_once,
        base_batch_size=max(100, rows_at_once), drop_last=False,
    )  # fmt: skip


class Heads:
    """Projections and heads trained so far, by all that decides them: methods that differ only online share theirs."""

    def __init__(self) -> None:
        self._trained: dict[str, tuple[Strategy, list[float]]] = {}

    def get(self, key: str, train: Callable[[], tuple[Strategy, list[float]]]) -> tuple[Strategy, list[float]]:
        """A copy of those with that key, trained if they are new; a method may change what it gets."""
        if key not in self._trained:
            self._trained[key] = train()
        return copy.deepcopy(self._trained[key])

    def __deepcopy__(self, memo: dict[int, object]) -> "Heads":
        return self  # copies of a learner share them too


@dataclass
class Contest:
    """All runs on one data set and one network file.

    ``exact_batches`` feeds every method batches of ten, also those whose answer does not depend on it. Contests with
    the same ``heads`` share what was trained on features.
    """

    data: FeatureData
    checkpoint: Path
    backbone: str = "reduced_resnet18"
    seed: int = 0
    exact_batches: bool = False
    heads: Heads = field(default_factory=Heads)

    def runs(
        self, contender: Contender, courses: Iterable[Course], keep: Callable[[RunResult], None] | None = None
    ) -> list[RunResult]:
        """One result a course. Courses with the same base classes share one base session."""
        results: list[RunResult] = []
        fitted: tuple[tuple[int, ...], FrozenLearner, float] | None = None
        timed: set[str] = set()
        for each in sorted(courses, key=lambda one: (one.blocks[0], one.partition, one.order)):
            learner = self.learner(contender)
            rows = BATCH if self.exact_batches or learner.depends_on_batching else ROWS_AT_ONCE
            stream = feature_stream(self.data, each, rows)
            if fitted is None or fitted[0] != each.blocks[0]:
                start = perf_counter()
                learner.fit_base(stream.base)
                fitted = each.blocks[0], learner, perf_counter() - start
            learner = copy.deepcopy(fitted[1])
            learner.log_ |= {"rows_at_once": rows, "base_seconds": fitted[2]}
            pace = self.pace(learner, stream) if each.partition not in timed else None
            timed.add(each.partition)
            if pace is not None:
                learner.log_["seconds_per_1000"] = pace
            results.append(run(learner, stream, test_batch=TESTED_AT_ONCE))
            if keep is not None:
                keep(results[-1])
            log.info("%s %s order %d: Acc %.4f", contender, each.partition, each.order, results[-1].acc)
        return results

    def learner(self, contender: Contender) -> FrozenLearner:
        """A learner that takes features for images and this contest's network for its own."""
        learner = _frozen(contender, self.backbone, self.data.image_size, self.seed)
        if learner.feature_dim != self.data.feature_dim:
            raise ValueError(
                f"{contender.method} wants {learner.feature_dim} features, these are {self.data.feature_dim}: "
                "its stages or backbone differ"
            )
        learner.checkpoint = self.checkpoint  # type: ignore[assignment]
        learner.contest_heads, learner.contest_data = self.heads, self.data.fingerprint  # type: ignore[assignment]
        learner.features = MethodType(_as_they_are, learner)  # type: ignore[method-assign]
        learner.train_network = MethodType(_as_given, learner)  # type: ignore[method-assign]
        return learner

    def pace(self, learner: FrozenLearner, stream: Stream, n: int = 200) -> dict[str, JSON]:
        """Seconds for 1,000 features, learned in batches of ten and predicted in one; on a copy."""
        learner = copy.deepcopy(learner)
        train = self.data.train.where(stream.blocks[1])
        z, y = tensors(train.subset(np.arange(min(n, len(train)))))
        start = perf_counter()
        for rows in range(0, len(y), BATCH):
            learner.learn(z[rows : rows + BATCH], y[rows : rows + BATCH])
        learned = perf_counter() - start
        test = tensors(self.data.test.subset(np.arange(min(1000, len(self.data.test)))))[0]
        with torch.no_grad():
            learner.score(test[:1])  # whatever is solved once after learning is no cost of one image
            start = perf_counter()
            learner.score(test)
        return {"learn": 1000 * learned / len(y), "predict": 1000 * (perf_counter() - start) / len(test)}

    def bound(self) -> RunResult:
        """The joint linear probe as a run of one session that brings all classes."""
        start = perf_counter()
        labels = tuple(range(self.data.n_classes))
        probe = linear_probe(*tensors(self.data.train), self.data.n_classes, seed=self.seed)
        seconds = perf_counter() - start
        start = perf_counter()
        z, y = tensors(self.data.test)
        tested = answers_row(y, probe.score(z).argmax(1), [labels])
        about: dict[str, JSON] = {
            "dataset": self.data.name,
            "fingerprint": self.data.fingerprint,
            "partition": "all at once",
            "features": self.data.origin,
        }
        errors: dict[str, JSON] = {f"{penalty:g}": value for penalty, value in probe.accuracies.items()}
        return RunResult(
            method=PROBE,
            params={"penalty": probe.penalty},
            tags={"stores_exemplars": True, "uses_boundaries": False},
            stream=about,
            seed=self.seed,
            session_classes=(labels,),
            accuracy=(tested.sessions,),
            class_accuracy=(tested.classes,),
            confusion=(tested.confusion,),
            seconds=(seconds,),
            test_seconds=(perf_counter() - start,),
            peak_memory=peak_memory(),
            state_bytes={"network": 0, "statistics": probe.weight.nbytes + probe.bias.nbytes, "exemplars": 0},
            base=dict(self.data.origin or {}),
            environment=environment(),
            log={"held_out_accuracy": errors},
            finished=True,
        )


def compare(
    contenders: Sequence[Contender],
    contests: Callable[[Contender], Contest],
    courses: Sequence[Course],
    out: Path,
) -> list[RunResult]:
    """All contenders on all courses; each result is written to ``out`` and found there again the next time."""
    results = []
    for contender in contenders:
        contest = contests(contender)
        kept: dict[Course, Path] = {}
        for each in courses:
            wanted: dict[str, JSON] = {
                "method": contender.method, "params": contender.params, "seed": contest.seed,
                "features": contest.data.origin, "data": contest.data.fingerprint,
                "blocks": [list(block) for block in each.blocks], "order": each.order,
            }  # fmt: skip
            kept[each] = (
                out / f"{contender.method.replace(':', '.')}-{each.partition}-{each.order}-{digest(wanted)}.json"
            )
        missing = [each for each in courses if not kept[each].exists()]

        def keep(result: RunResult, kept: dict[Course, Path] = kept) -> None:
            key = (result.stream["partition"], result.stream["order_seed"])
            result.save(next(path for each, path in kept.items() if (each.partition, each.order) == key))

        contest.runs(contender, missing, keep)
        results += [RunResult.load(kept[each]) for each in courses]
    return results


def stages_of(contender: Contender, backbone: str, image_size: int) -> tuple[int, ...] | None:
    """The stages whose features a contender takes."""
    return _frozen(contender, backbone, image_size, 0).stages


def _frozen(contender: Contender, backbone: str, image_size: int, seed: int) -> FrozenLearner:
    params: dict[str, JSON] = {"seed": seed, "backbone": backbone, "image_size": image_size}
    learner = make(contender.method, **(params | contender.params))
    if not isinstance(learner, FrozenLearner):
        raise TypeError(f"{contender.method} trains more than what follows the features; use `nocl run`")
    if getattr(learner, "flip", False):
        raise ValueError(f"{contender.method} with flip looks at images, not features alone; use `nocl run`")
    return learner


def _as_they_are(self: FrozenLearner, x: Tensor) -> Tensor:
    """Features for features."""
    return x.to(self.device)


def _as_given(self: FrozenLearner, base: Iterable[Batch], workdir: Path | None) -> Trained:
    """The network the features were made with, in place of training one; heads, if wanted, trained on base features."""
    path: Path = self.checkpoint  # type: ignore[assignment]
    self.base_ = load_weights(self.network, path)
    if self.needs_heads():
        heads: Heads = self.contest_heads  # type: ignore[assignment]
        batches = [*base]
        objective, losses = heads.get(_decides_heads(self, batches), lambda: _train_heads(self, batches))
        self.base_ |= {"recipe": self.full_recipe.heads_to_json(), "heads": ON_FEATURES}
        self.log_["base_loss"] = list(losses)
        return Trained(objective, self.base_, losses)
    return Trained(Objective(self.network, self.feature_dim, len(self.classes_), self.seed), self.base_, [])


def _train_heads(learner: FrozenLearner, batches: Sequence[Batch]) -> tuple[Strategy, list[float]]:
    return heads_on_features(
        learner.network,
        torch.cat([learner.features(batch.x) for batch in batches]),
        learner.columns(torch.cat([batch.y for batch in batches])),
        learner.full_recipe,
        n_classes=len(learner.classes_),
        seed=learner.seed,
    )


def _decides_heads(learner: FrozenLearner, batches: Sequence[Batch]) -> str:
    """Data in their order, network, stages, recipe and seed: equal for equal heads."""
    labels = torch.cat([batch.y for batch in batches]).tolist()
    return digest(
        {
            "data": [str(learner.contest_data), labels], "network": learner.base_, "stages": list(learner.stages or ()),
            "recipe": learner.full_recipe.heads_to_json(), "seed": learner.seed,
        }
    )  # fmt: skip
