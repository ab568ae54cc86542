"""The base session of a classifier: learn from base images, then calibrate with those that were held out.

Images come from an :class:`~nocl.data.ImageSet`, batch by batch, so that those of files are never all in memory.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

import torch

from nocl.app.calibration import Calibration, calibrate
from nocl.data import ImageSet
from nocl.learner import FrozenLearner, Learner
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON
from nocl.streams import RepeatableSession

AT_ONCE = 256  # images through the network together


def is_ready(learner: Learner) -> TypeGuard[FrozenLearner]:
    """Whether there is no network to train: one look at each image is enough."""
    return bool(learner.base_) and isinstance(learner, FrozenLearner)


def fit_base(learner: Learner, base: ImageSet, seed: int, workdir: Path | None) -> None:
    """Train the network if it is to be trained, and learn the base classes."""
    classes = tuple(dict.fromkeys(base.labels.tolist()))
    size = min(100, max(2, len(base) // 4))
    if is_ready(learner):
        session = RepeatableSession(classes, base, size, seed, {})
        learner.meet(classes)
        batches = track(session.epoch(0), "learning", len(session))
        learner.fit_base_features((learner.features(x), y) for x, y in batches)
    else:
        about: dict[str, JSON] = {"dataset": "your images", "fingerprint": base.content}
        learner.fit_base(RepeatableSession(classes, base, size, seed, about), workdir=workdir)
    learner.eval()


def calibrate_on(learner: Learner, held: ImageSet) -> Calibration:
    """How scores become probabilities, by images that were not learned; then learn them too, where one look will do."""
    column = {label: i for i, label in enumerate(learner.classes_.tolist())}
    scores = torch.cat([learner.decision_function(x).cpu() for x, _ in _tracked(held, "calibrating")])
    columns = torch.tensor([column[label] for label in held.labels.tolist()])
    found = calibrate(scores, columns, learner.softmax_temperature())
    if isinstance(learner, FrozenLearner):  # only now may the statistics take them in
        for x, y in _tracked(held, "learning the held-out images"):
            learner.observe(x, y)
    return found


def _tracked(images: ImageSet, what: str) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    return track(images.batches(AT_ONCE), what, -(-len(images) // AT_ONCE))
