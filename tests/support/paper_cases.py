"""Made results of DSR for the tests of the paper's tables."""

from functools import cache
from typing import Any

from nocl.experiments.paper.comparison import Line
from nocl.methods import make
from nocl.results import RunResult
from tests.support.made_results import result


@cache
def _usual() -> dict[str, Any]:
    return make("dsr").get_params()


def dsr(acc: float, order: int = 0, dataset: str = "cifar100", novel: float | None = None, **params: Any) -> RunResult:
    """A finished run of DSR with its usual parameters but for ``params``, all classes at ``acc`` unless told."""
    stream = {"dataset": dataset, "partition": "60+4x10", "order_seed": order}
    full = {**_usual(), "seed": order, **params}
    classes = ((order, order + 1), (order + 2,), (order + 3,))
    late = acc if novel is None else novel
    return result(acc, late, method="dsr", params=full, seed=order, stream=stream, base={}, session_classes=classes)


def ran(table: list[Line]) -> list[Line]:
    return [line for line in table if line.runs]
