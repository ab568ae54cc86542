"""Results made up for tables and reports."""

from typing import Any

from nocl.results import CONFUSION, RunResult


def result(base: float = 0.5, novel: float = 0.25, /, *, done: int = 3, **changes: Any) -> RunResult:
    """Two base classes, then two sessions of one class; ``done`` rows learned, all alike."""
    rows = [[base, *[novel] * t, *[None] * (2 - t)] for t in range(done)]
    counts = dict(zip(CONFUSION, (10, 6, 4, 2, 5, 3)))
    values: dict[str, Any] = {
        "method": "ncm",
        "params": {"seed": 0, "cosine": True},
        "tags": {"stores_exemplars": False, "uses_boundaries": False},
        "stream": {"dataset": "glyphs", "partition": "50+2x25", "order_seed": 0, "class_order": [0, 1, 2, 3]},
        "seed": 0,
        "session_classes": ((0, 1), (2,), (3,)),
        "accuracy": rows,
        "class_accuracy": [[row[0], *row] for row in rows],
        "confusion": [counts] * done,
        "seconds": [9.0, 1.0, 2.0][:done],
        "test_seconds": [0.1] * done,
        "peak_memory": 1000,
        "state_bytes": {"network": 4000, "statistics": 640, "exemplars": 0},
        "base": {"recipe": "ce", "epochs": 3},
        "environment": {"torch": "2.13"},
        "log": {},
        "finished": done == 3,
    }
    return RunResult(**(values | changes))
