"""ASER: adversarial Shapley value experience replay (Shim et al., AAAI 2021).

The Shapley value of a stored image is its contribution to a k-nearest-neighbour classification in feature space. An
image is replayed if it helps to classify the memory (cooperative) and lies near new images of other classes
(adversarial):

    retrieve  A = SV(points = new batch, candidates = n images of each class)
              C = SV(points = n other images of each class, same candidates)
              replay the 10 candidates with the highest  mean_rows(C) - mean_rows(A)      (``asvm``)
    train     one SGD step on the cross-entropy of [memory; new], one mean over both
    update    free slots first; then points = n images of each class and the new ones of minority classes,
              candidates = n K random stored images and the new ones; those with the largest summed value stay

A class is a minority if its share of the memory is below u, with u uniform in [0, 1 / K] for each batch. K is the
number of classes met. Features are taken in eval mode, 64 images at a time.

Differences from the reference code (RaptorMai/online-continual-learning, utils/buffer/aser_*.py):

* With fewer candidates than k neighbours the code's values break the efficiency axiom; ours are exact.
* K counts classes met, not those of the data set, which a learner cannot know.
* ``n_per_class`` is a whole number; the code truncates 1.5 to 1 in one place and uses 1.5 in another.
* The code also takes gradients of both batches apart and discards them; we train once.
* A memory with at most ``n_per_class`` images of each class has no candidates left; it is then updated as a reservoir.
* The base session fills the memory as a plain reservoir, because the definition of a minority assumes a stream.
"""

from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.methods._replay import CHECK_PARAMS, ReplayClassifier, ReplayParameters
from nocl.plumbing.parameters import Count
from nocl.stats.memory import gradients, highest

_AT_ONCE = 64  # images through the network for features


class ASER(ReplayClassifier):
    """Replay and storage by Shapley values.

    Parameters
    ----------
    replay_batch
        Images replayed with each batch, 1 or more; 10 in the paper.
    neighbours
        k of the nearest-neighbour vote, 1 or more; 3 in the paper.
    n_per_class
        Images of each class that compete, 1 or more; 2 in the paper.
    score
        ``asvm`` (means, the paper's), ``asv`` (extremes) or ``neg_sv`` (the new batch alone).
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
        neighbours: Count = 3,
        n_per_class: Count = 2,
        score: Literal["asvm", "asv", "neg_sv"] = "asvm",
        **common: Unpack[ReplayParameters],
    ) -> None:
        super().__init__(**common)
        self.replay_batch, self.neighbours = replay_batch, neighbours
        self.n_per_class, self.score = n_per_class, score

    def observe(self, x: Tensor, y: Tensor) -> None:
        new, columns = self.prepare(x), self.columns(y)
        old, recalled = self.recall(self.retrieve(new, columns))
        self.set_training(True)
        loss = F.cross_entropy(self(torch.cat([old, new])), torch.cat([recalled, columns]))
        self.descend(gradients(loss, self.learning_parameters()))
        self.store(x, columns)
        self.eval()

    def retrieve(self, new: Tensor, columns: Tensor) -> Tensor:
        """Slots to replay: random until the memory is full, then by Shapley value."""
        if int(self.memory.seen) <= self.memory_size:
            return self.memory.random(self.replay_batch, self.draw)
        candidates = self.memory.balanced(self.n_per_class, self.draw)
        others = self.memory.balanced(self.n_per_class, self.draw, avoid=candidates)
        if not len(others):
            others = candidates  # one image of each class: there are no others
        z, labels = self.stored_features(candidates), self.memory.columns[candidates]
        adversarial = knn_shapley(self.features(new), columns, z, labels, self.neighbours)
        cooperative = adversarial
        if self.score != "neg_sv":
            points, point_labels = self.stored_features(others), self.memory.columns[others]
            cooperative = knn_shapley(points, point_labels, z, labels, self.neighbours)
        return candidates[highest(adversarial_shapley(adversarial, cooperative, self.score), self.replay_batch)]

    def store(self, x: Tensor, columns: Tensor) -> None:
        """Offer a batch to the memory; free slots are filled first, the rest compete."""
        free = self.memory_size - len(self.memory)
        if free:
            self.memory.update(x[:free], columns[:free], self.draw)
            x, columns = x[free:], columns[free:]
        if not len(columns):
            return
        points = self.memory.balanced(self.n_per_class, self.draw)
        candidates = self.memory.random(self.n_per_class * len(self.classes_), self.draw, avoid=points)
        if not len(candidates):  # every stored image is a point already
            self.memory.update(x, columns, self.draw)
            return
        new = self.features(self.prepare(x))
        minority = self.is_minority(columns)
        values = knn_shapley(
            torch.cat([self.stored_features(points), new[minority]]),
            torch.cat([self.memory.columns[points], columns[minority]]),
            torch.cat([self.stored_features(candidates), new]),
            torch.cat([self.memory.columns[candidates], columns]),
            self.neighbours,
        )
        lost, kept = exchange(values.sum(0), len(candidates))
        self.memory.write(x[kept.to(x.device)], columns[kept], candidates[lost])
        self.memory.seen += len(columns)

    def is_minority(self, columns: Tensor) -> Tensor:
        """True where the class has a smaller share of the memory than a random threshold, bool [B]."""
        threshold = torch.rand((), generator=self.draw).to(self.device) / len(self.classes_)
        share = self.memory.counts(len(self.classes_)) / max(1, len(self.memory))
        return share[columns] < threshold

    def stored_features(self, slots: Tensor) -> Tensor:
        return self.features(self.recall(slots)[0])

    @torch.no_grad()
    def features(self, prepared: Tensor) -> Tensor:
        """Features [B, d] in eval mode."""
        self.eval()
        return torch.cat([self.encode(part) for part in prepared.split(_AT_ONCE)])


def knn_shapley(z: Tensor, y: Tensor, candidates: Tensor, labels: Tensor, k: int) -> Tensor:
    """Shapley values [m, n] of each candidate [n, d] in the k-nearest-neighbour classification of each point [m, d].

    With candidates in order of distance and e_i = 1 where the label matches, s_n = e_n min(k, n) / (n k) and
    s_i = s_{i+1} + (e_i - e_{i+1}) min(k, i) / (i k). Rows sum to (matches among the k nearest) / k.

    >>> line = torch.arange(3.0)[:, None]
    >>> knn_shapley(line[:1], torch.tensor([1]), line, torch.tensor([1, 0, 1]), k=1)
    tensor([[ 0.8333, -0.1667,  0.3333]])
    """
    n = len(candidates)
    if not n or not len(z):
        return z.new_zeros(len(z), n)
    exact = "donot_use_mm_for_euclid_dist"  # the fast way loses the small distances that decide the order
    order = torch.cdist(z, candidates, compute_mode=exact).sort(dim=1, stable=True).indices  # [m, n]
    match = (labels[order] == y[:, None]).to(z)
    rank = torch.arange(1, n + 1, device=z.device, dtype=z.dtype)
    weight = rank.clamp_max(k) / (rank * k)  # min(k, i) / (i k)
    steps = torch.cat([(match[:, :-1] - match[:, 1:]) * weight[:-1], match[:, -1:] * weight[-1]], dim=1)
    values = steps.flip(1).cumsum(1).flip(1)
    return torch.zeros_like(values).scatter_(1, order, values)


def adversarial_shapley(adversarial: Tensor, cooperative: Tensor, kind: str) -> Tensor:
    """ASER's score of each candidate [n] from its values to the new batch and to the memory, both [m, n].

    ``asvm`` takes means, ``asv`` the extremes, ``neg_sv`` looks at the new batch alone.
    """
    if kind == "neg_sv":
        return -adversarial.sum(0)
    if kind == "asv":
        return cooperative.amax(0) - adversarial.amin(0)
    return cooperative.mean(0) - adversarial.mean(0)


def exchange(scores: Tensor, n_kept: int) -> tuple[Tensor, Tensor]:
    """Candidates are ``n_kept`` stored images and then new ones, and as many stay as are stored.

    Returns which stored candidates go and which new ones take their places, equally many, both best first.
    """
    order = highest(scores, len(scores))
    kept, lost = order[:n_kept], order[n_kept:]
    return lost[lost < n_kept], kept[kept >= n_kept] - n_kept
