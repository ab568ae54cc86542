"""The check of methods with ``learns_from_one_image``: the first image of a class must not harm other classes."""

import torch
from torch import Tensor

from nocl.checks.material import QUICK, expect
from nocl.learner import FrozenLearner, Learner
from nocl.plumbing.parameters import parameters_of
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON

CLASSES, IMAGES, TESTED, DIM = 20, 20, 20, 40
LOST, WORSE = 0.025, 0.1  # of old accuracy after one image; of the new class's when it has more images


def the_first_image_spoils_nothing(cls: type[Learner], params: dict[str, JSON]) -> None:
    """20 Gaussian classes and a new one of 1, 3 and 10 images: old classes keep their accuracy, the new one gains."""
    if not (issubclass(cls, FrozenLearner) and cls.learns_from_one_image):
        return
    draw = generator(0, "first image")
    means = 3 * torch.rand(CLASSES + 1, DIM, generator=draw)
    images = (means[:, None] + torch.randn(CLASSES + 1, IMAGES + TESTED, DIM, generator=draw)).clamp_min(0)
    before = _accuracies(cls, params, images, 0)
    found = [_accuracies(cls, params, images, shots) for shots in (1, 3, 10)]
    for shots, right in zip((1, 3, 10), found):
        lost = float(before[:CLASSES].mean() - right[:CLASSES].mean())
        expect(lost <= LOST, f"{shots} images of a new class take {lost:.3f} of the old classes' accuracy")
    new = [float(right[CLASSES]) for right in found]
    expect(new[2] > 0.5, f"a class of ten images is recognised in {new[2]:.2f} of cases")
    expect(min(new[1] - new[0], new[2] - new[1]) >= -WORSE, f"more images make a class worse: {new}")


def _accuracies(cls: type[FrozenLearner], params: dict[str, JSON], images: Tensor, shots: int) -> Tensor:
    """The accuracy of each class."""
    about = {**QUICK, **cls.check_params, **params, "backbone": f"features:{DIM}"}
    if "stages" in parameters_of(cls):
        about["stages"] = None  # stored features have no stages
    learner = cls(**about)  # type: ignore[arg-type]
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    learner.fit_base_features([(images[:CLASSES, :IMAGES].flatten(0, 1), labels)])
    if shots:
        learner.learn(images[CLASSES, :shots], torch.full((shots,), CLASSES))
        learner.end_session()
    answers = learner.classes_[learner.score(images[:, IMAGES:].flatten(0, 1)).argmax(1)].view(CLASSES + 1, TESTED)
    return (answers == torch.arange(CLASSES + 1)[:, None]).double().mean(1)
