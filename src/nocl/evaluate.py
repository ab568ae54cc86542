"""One test of a learner: accuracy of each class and session seen, and how base and novel classes are confused."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nocl.data import ImageSet
from nocl.learner import Learner
from nocl.metrics import session_means


@dataclass(frozen=True)
class Assessment:
    """What is known after one session; None for classes and sessions not yet seen."""

    sessions: tuple[float | None, ...]
    classes: tuple[float | None, ...]
    confusion: dict[str, int]


def assess(
    learner: Learner, test_sets: Sequence[ImageSet], blocks: Sequence[Sequence[int]], batch_size: int = 128
) -> Assessment:
    """Test on ``test_sets``, the first of the sessions whose classes are ``blocks``."""
    pairs = [(y, learner.predict(x)) for images in test_sets for x, y in images.batches(batch_size)]
    truth, answer = torch.cat([y for y, _ in pairs]), torch.cat([p for _, p in pairs])
    return row(truth, answer, blocks)


def row(truth: torch.Tensor, answer: torch.Tensor, blocks: Sequence[Sequence[int]]) -> Assessment:
    """Accuracies and confusion of answers [N] where ``truth`` [N] holds the labels.

    >>> row(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), [[0], [1], [2]]).sessions
    (0.5, 1.0, None)
    """
    right = truth == answer
    classes: list[float | None] = []
    for label in (label for block in blocks for label in block):
        of_class = right[truth == label]
        classes.append(float(of_class.double().mean()) if len(of_class) else None)
    base = torch.tensor(list(blocks[0]))
    from_base, to_base = torch.isin(truth, base), torch.isin(answer, base)
    confusion = {}
    for name, of_kind in (("base", from_base), ("novel", ~from_base)):
        confusion[f"{name}_right"] = int((of_kind & right).sum())
        confusion[f"{name}_as_base"] = int((of_kind & ~right & to_base).sum())
        confusion[f"{name}_as_novel"] = int((of_kind & ~right & ~to_base).sum())
    return Assessment(session_means(classes, [len(block) for block in blocks]), tuple(classes), confusion)
