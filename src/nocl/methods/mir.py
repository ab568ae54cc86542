"""MIR: maximally interfered retrieval (Aljundi et al., NeurIPS 2019). Replays what the coming step would harm most.

For each batch (x, y), once:

    g       = gradient of CE(f_theta(x), y)
    theta_v = theta - lr g                                  the step that would come, taken on a copy
    score   = CE(f_theta_v(s)) - CE(f_theta(s))             for 50 random images s of the memory
    theta  <- theta - lr (g + gradient of CE on the 10 images with the highest score)

then the reservoir is offered the batch. Inference: argmax of the linear head over the classes met.

Differences from the reference code (RaptorMai/online-continual-learning, utils/buffer/mir_retrieve.py):

* Scores are taken in eval mode. The code scores in train mode, where each candidate's loss depends on the others and
  the live batch statistics move although no gradient is taken. ``score_bn_mode="train"`` scores as the code does but
  on a copy of the statistics.
* Ties are broken by the candidates' order; the code leaves them to an unstable sort.
* ``replay_batch`` may not exceed ``candidates``. The code of the NO-CL paper sets 100 of 50, which replays everything.
* The head has rows for the classes met; the code has all from the start and lets unmet classes win.
* The base session is cross-entropy without replay, then one pass fills the memory (see ``replay.py``).
"""

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from nocl.methods._replay import CHECK_PARAMS, ReplayClassifier, add, check_replay
from nocl.plumbing.types import JSON
from nocl.stats.memory import gradients, highest, interference, moved


class MIR(ReplayClassifier):
    """Experience replay of the images whose loss would rise most."""

    check_params = CHECK_PARAMS

    def __init__(
        self,
        *,
        memory_size: int = 1000,
        lr: float = 0.1,
        replay_batch: int = 10,
        candidates: int = 50,
        score_bn_mode: Literal["eval", "train"] = "eval",
        freeze_backbone: bool = False,
        backbone: str = "reduced_resnet18",
        weights: str | None = None,
        recipe: Mapping[str, JSON] | None = None,
        image_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(
            memory_size=memory_size, lr=lr, freeze_backbone=freeze_backbone, backbone=backbone, weights=weights,
            recipe=recipe, image_size=image_size, seed=seed,
        )  # fmt: skip
        check_replay(replay_batch, candidates)
        if score_bn_mode not in ("eval", "train"):
            raise ValueError(f"score_bn_mode must be eval or train, not {score_bn_mode!r}")
        self.replay_batch, self.candidates, self.score_bn_mode = replay_batch, candidates, score_bn_mode

    def observe(self, x: Tensor, y: Tensor) -> None:
        new, columns = self.prepare(x), self.columns(y)
        self.set_training(True)
        parameters = self.learning_parameters()
        gradient = gradients(F.cross_entropy(self(new), columns), parameters)
        if len(self.memory):
            slots = self.retrieve(moved(parameters, gradient, self.lr))
            images, recalled = self.recall(slots)
            self.set_training(True)
            gradient = add(gradient, gradients(F.cross_entropy(self(images), recalled), parameters))
        self.descend(gradient)
        self.memory.update(x, columns, self.draw)
        self.eval()

    def retrieve(self, ahead: Mapping[str, Tensor]) -> Tensor:
        """Slots of the candidates that suffer most when the parameters become ``ahead``."""
        slots = self.memory.random(self.candidates, self.draw)
        self.set_training(self.score_bn_mode == "train")
        scores = interference(self, *self.recall(slots), ahead)
        return slots[highest(scores, self.replay_batch)]
