"""The joint linear probe: logistic regression on the features of all classes at once, in many passes.

It sees all data at once, on purpose: it is an upper bound for *linear* classifiers of the same features. Methods that
expand features or use a covariance of each class are not linear in them and may be better.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from nocl.data.features import FeatureData, tensors
from nocl.metrics import answers_row
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.results import RunResult, environment, peak_memory

PROBE = "joint linear probe"
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # on |W|^2 / 2, with the mean loss of standardised features


@dataclass(frozen=True)
class Probe:
    """A fitted probe; ``accuracies`` are those on the held-out fifth, for each penalty tried."""

    mean: Tensor
    std: Tensor
    weight: Tensor  # [K, d]
    bias: Tensor
    penalty: float
    accuracies: dict[float, float]

    def score(self, z: Tensor) -> Tensor:
        """Scores [B, K]; column i is label i."""
        return (z - self.mean) / self.std @ self.weight.T + self.bias


def linear_probe(
    z: Tensor,
    y: Tensor,
    n_classes: int,
    *,
    penalties: tuple[float, ...] = PENALTIES,
    seed: int = 0,
    iterations: int = 200,
) -> Probe:
    """Fit by L-BFGS; the penalty is chosen on a fifth of the training data, then all of it is fitted again."""
    mean, std = z.mean(0), z.std(0).clamp_min(1e-6)
    z = (z - mean) / std
    order = torch.randperm(len(y), generator=generator(seed, "probe"))
    aside, kept = order[: len(y) // 5], order[len(y) // 5 :]
    accuracies: dict[float, float] = {}
    start = torch.zeros(n_classes, z.shape[1] + 1, dtype=z.dtype)
    for penalty in sorted(penalties, reverse=True):  # from strong to weak, each starting from the one before
        start = _fit(z[kept], y[kept], start, penalty, iterations)
        answer = (z[aside] @ start[:, :-1].T + start[:, -1]).argmax(1)
        accuracies[penalty] = float((answer == y[aside]).double().mean())
    best = max(accuracies, key=lambda penalty: (accuracies[penalty], penalty))
    found = _fit(z, y, torch.zeros_like(start), best, iterations)
    return Probe(mean, std, found[:, :-1], found[:, -1], best, accuracies)


def _fit(z: Tensor, y: Tensor, start: Tensor, penalty: float, iterations: int) -> Tensor:
    """Weights and bias [K, d + 1] that minimise mean cross-entropy + penalty |W|^2 / 2."""
    solution = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [solution], max_iter=iterations, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        weight, bias = solution[:, :-1], solution[:, -1]
        value = F.cross_entropy(torch.addmm(bias, z, weight.T), y) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return solution.detach()


def joint_probe(data: FeatureData, *, seed: int = 0) -> RunResult:
    """The probe as the result of a run with one session of all classes."""
    start = perf_counter()
    labels = tuple(range(data.n_classes))
    probe = linear_probe(*tensors(data.train), data.n_classes, seed=seed)
    seconds = perf_counter() - start
    start = perf_counter()
    z, y = tensors(data.test)
    tested = answers_row(y, probe.score(z).argmax(1), [labels])
    about: dict[str, JSON] = {"dataset": data.name, "fingerprint": data.fingerprint, "partition": "all at once"}
    accuracies: dict[str, JSON] = {f"{penalty:g}": value for penalty, value in probe.accuracies.items()}
    return RunResult(
        method=PROBE,
        params={"penalty": probe.penalty},
        tags={"stores_exemplars": True, "uses_boundaries": False},
        stream={**about, **data.made_by},
        seed=seed,
        session_classes=(labels,),
        accuracy=(tested.sessions,),
        class_accuracy=(tested.classes,),
        confusion=(tested.confusion,),
        seconds=(seconds,),
        test_seconds=(perf_counter() - start,),
        peak_memory=peak_memory(),
        state_bytes={"network": 0, "statistics": probe.weight.nbytes + probe.bias.nbytes, "exemplars": 0},
        base=dict(data.origin or {}),
        environment=environment(),
        log={"held_out_accuracy": accuracies},
        finished=True,
    )
