"""MIR: maximally interfered retrieval (Aljundi et al., NeurIPS 2019). Replays what the next step would harm most.

For each batch (x, y), once:

    g       = gradient of CE(f_theta(x), y)
    theta_v = theta - lr g                                  the next step, on a copy
    score   = CE(f_theta_v(s)) - CE(f_theta(s))             for 50 random images s of the memory
    theta  <- theta - lr (g + gradient of CE on the 10 images with the highest score)

then the reservoir is offered the batch. Inference: argmax of the linear head over the classes met.

Differences from the reference code (RaptorMai/online-continual-learning, utils/buffer/mir_retrieve.py):

* Scores are computed in eval mode. The code computes them in train mode, where each candidate's loss depends on the
  others, and where the network's batch statistics change although it does not learn. ``score_bn_mode="train"`` does as
  the code but on a copy of the statistics.
* Of equal scores the first candidate is taken; the code's sort is unstable.
* ``replay_batch`` may not exceed ``candidates``. The code of the NO-CL paper sets 100 of 50, which replays everything.
* The head has rows for the classes met; the code has all from the start and lets unmet classes win.
* The base session is cross-entropy without replay, then one pass fills the memory (see ``_replay.py``).
"""

from collections.abc import Mapping
from typing import Literal, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from nocl.methods._replay import CHECK_PARAMS, ReplayClassifier, ReplayParameters, add, check_replay
from nocl.plumbing.parameters import Count
from nocl.stats.memory import gradients, highest, look, moved


class MIR(ReplayClassifier):
    """Experience replay of the images whose loss would rise most.

    Parameters
    ----------
    replay_batch
        Images replayed with each batch, 1 or more and at most ``candidates``; 10 in the paper.
    candidates
        Random images of the memory from which they are chosen, 1 or more; 50 in the paper.
    score_bn_mode
        Batch normalisation while scoring: ``eval``, or ``train`` as in the reference code.
    **common
        ``memory_size`` (images kept, 1 or more), ``lr`` (learning rate, 0 or more), ``freeze_backbone`` (train the
        heads alone): see :class:`~nocl.methods._replay.ReplayLearner`. ``backbone``, ``weights``, ``recipe``,
        ``image_size``, ``seed``: see :class:`~nocl.learner.Learner`.
    """

    check_params = CHECK_PARAMS

    def __init__(
        self,
        *,
        replay_batch: Count = 10,
        candidates: Count = 50,
        score_bn_mode: Literal["eval", "train"] = "eval",
        **common: Unpack[ReplayParameters],
    ) -> None:
        super().__init__(**common)
        check_replay(replay_batch, candidates)
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
        """Slots of the candidates whose loss rises most when the parameters become ``ahead``."""
        slots = self.memory.random(self.candidates, self.draw)
        self.set_training(self.score_bn_mode == "train")
        scores = interference(self, *self.recall(slots), ahead)
        return slots[highest(scores, self.replay_batch)]


def interference(model: nn.Module, x: Tensor, columns: Tensor, ahead: Mapping[str, Tensor]) -> Tensor:
    """How much each image's cross-entropy would rise if the parameters became ``ahead`` [n] (MIR)."""
    before = F.cross_entropy(look(model, x, {}), columns, reduction="none")
    after = F.cross_entropy(look(model, x, ahead), columns, reduction="none")
    return after - before
