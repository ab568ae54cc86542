"""Cost and state as classes grow: seconds an image and bytes a class of every method on frozen features.

Synthetic features, d = 160 and 640, classes 100 -> 1,000 -> 10,000. Each method makes room for all classes and learns
two features of each of the first thousand (`rda full`, whose state grows with the classes seen, of all). Then it
is timed on batches of ten (learning) and of a hundred (prediction; "solve once" is what the first prediction takes
longer than the second). Times are processor time of one thread, medians of ``--repeat`` rounds, every second of which
goes through the methods backwards. A method whose state would not fit the memory given is not run; its bytes are those
of its formula, which is checked against every size that is run. DSR's refinement at a session's end is no cost of an
image and is not timed. Writes scaling.json, scaling.md and scaling.svg; rows that are there and
not measured again stay.

    python benchmarks/scaling.py --out benchmarks/results/scaling
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from nocl.experiments.report.tables import duration, markdown_table, size
from nocl.learner import FrozenLearner
from nocl.methods import METHODS
from nocl.plumbing.files import write_atomically, write_json
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.results import environment

WARM_UP = 1000
# bytes of statistics by the specifications: what may grow with the classes K and how
BYTES: dict[str, Callable[[int, int], int]] = {
    "ncm": lambda k, d: k * (8 * d + 8),
    "slda": lambda k, d: k * (8 * d + 8) + 8 * d * d,
    "fecam full": lambda k, d: k * (8 * d * d + 16 * d + 16),
    "fecam diagonal": lambda k, d: k * (24 * d + 16),
    "fecam shared": lambda k, d: k * (16 * d + 16) + 8 * d * d,
    "ranpac": lambda k, d: k * (8 * 2000 + 8) + 8 * 2000**2,
    "acil": lambda k, d: k * (8 * 2048 + 8) + 8 * 2048**2,
    "rda full": lambda k, d: k * (2 * d * (d + 1) + 8 * d + 16) + 8 * d * d,
    "rda shared": lambda k, d: k * (8 * d + 8) + 8 * d * d,
    "dsr": lambda k, d: k * (16 * d + 8 + 8 * 2048 + 8),
}
SETTINGS: dict[str, dict[str, JSON]] = {
    "fecam full": {"covariance": "full"},
    "fecam diagonal": {"covariance": "diagonal"},
    "fecam shared": {"covariance": "shared"},
    "rda full": {"storage": "full", "stages": None},
    "rda shared": {"storage": "shared", "stages": None},
}


class FirstPixels(nn.Module):
    """A network whose feature is the first d pixels: only its length matters here."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.d]


def features160() -> FirstPixels:
    return FirstPixels(160)


def features640() -> FirstPixels:
    return FirstPixels(640)


def measure(name: str, n_classes: int, d: int) -> dict[str, float | int]:
    """Time and state of one method with so many classes."""
    params = SETTINGS.get(name, {})
    cls = METHODS[name.split()[0]]
    learner = cls(backbone=f"scaling:features{d}", **params)  # type: ignore[arg-type]
    assert isinstance(learner, FrozenLearner)
    draw = generator(n_classes, d)
    learner.meet(range(n_classes))
    warm = n_classes if name == "rda full" else min(n_classes, WARM_UP)
    for labels in torch.arange(warm).repeat(2).split(1000):
        learner.learn(torch.rand(len(labels), d, generator=draw), labels)
    batches = [(torch.rand(10, d, generator=draw), torch.randint(n_classes, (10,), generator=draw)) for _ in range(10)]
    learner.learn(*batches[0])
    start = process_time()
    for z, y in batches:
        learner.learn(z, y)
    learned = (process_time() - start) / 100
    queries = torch.rand(100, d, generator=draw)
    with torch.no_grad():
        start = process_time()
        learner.score(queries)
        first = process_time() - start
        start = process_time()
        learner.score(queries)
        second = process_time() - start
    found = {"learn_seconds": learned, "solve_seconds": max(0.0, first - second), "predict_seconds": second / 100}
    return {**found, "statistics_bytes": learner.state_bytes()["statistics"]}


def rows_of(
    sizes: list[int], dims: list[int], limit: int, methods: Sequence[str] | None = None, repeat: int = 1
) -> list[dict[str, JSON]]:
    """Every method at every size; state over the limit is stated, not built."""
    rows: list[dict[str, JSON]] = [
        {"method": name, "d": d, "classes": k, "formula_bytes": BYTES[name](k, d)}
        for name in (BYTES if methods is None else methods)
        for d in dims
        for k in sizes
    ]
    rounds: list[list[dict[str, float | int]]] = [[] for _ in rows]
    for turn in range(repeat):
        for row, found in [*zip(rows, rounds)][:: -1 if turn % 2 else 1]:
            if 2.5 * int(str(row["formula_bytes"])) <= limit:  # growing and factorising need a second copy
                found.append(measure(str(row["method"]), int(str(row["classes"])), int(str(row["d"]))))
                print(turn, {key: row[key] for key in ("method", "d", "classes")}, found[-1], flush=True)
    for row, found in zip(rows, rounds):
        row |= {name: median(each[name] for each in found) for name in (found[0] if found else ())}
        if found:
            row["repeat"] = repeat
            _check_bytes(row)
    return rows


def joined(path: Path, fresh: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """The rows in a file, if there is one, with the fresh ones in place of theirs; every row names its commit."""

    def key(row: dict[str, JSON]) -> tuple[int, int, int]:
        return [*BYTES].index(str(row["method"])), int(str(row["d"])), int(str(row["classes"]))

    rows = {}
    if path.exists():
        before = json.loads(path.read_text("utf-8"))
        rows = {key(row): {"commit": before["environment"]["commit"], **row} for row in before["rows"]}
    now = environment()
    rows |= {key(row): {**row, "commit": now["commit"], "dirty": now["dirty"]} for row in fresh}
    return [rows[each] for each in sorted(rows)]


def _check_bytes(row: dict[str, JSON]) -> None:
    """The state must be what the formula says, up to the few bytes of labels and counters."""
    measured, formula, classes = row["statistics_bytes"], row["formula_bytes"], row["classes"]
    assert isinstance(measured, int | float)
    assert isinstance(formula, int)
    assert isinstance(classes, int)
    if not 0 <= measured - formula <= 8 * classes + 10_000:
        raise AssertionError(f"{row['method']} keeps {measured} bytes, by its specification {formula}")


def table(rows: list[dict[str, JSON]]) -> str:
    """One line a method and size."""

    def seconds(row: dict[str, JSON], name: str, times: int) -> str:
        value = row.get(f"{name}_seconds")
        return duration(times * value) if isinstance(value, float) else "not run"

    header = ["Method", "d", "Classes", "State", "Bytes a class", "Learn 1,000", "Solve once", "Predict 1,000"]
    body = []
    for row in rows:
        total = row.get("statistics_bytes", row["formula_bytes"])
        assert isinstance(total, int)
        assert isinstance(row["classes"], int)
        cells = [str(row["method"]), str(row["d"]), f"{row['classes']:,}", size(total), size(total / row["classes"])]
        cells += [seconds(row, name, times) for name, times in (("learn", 1000), ("solve", 1), ("predict", 1000))]
        body.append(cells)
    return markdown_table(header, body)


def plot(rows: list[dict[str, JSON]], path: Path) -> None:
    """Four panels: learning, prediction, bytes at d = 160 and 640."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "nocl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6), sharex=True)
    titles = {
        "learn_seconds": "learn an image, s",
        "predict_seconds": "predict an image, s",
        "statistics_bytes": "state, bytes",
    }
    for line, d in zip(axes, sorted({int(str(row["d"])) for row in rows})):
        for axis, (key, title) in zip(line, titles.items()):
            for name in BYTES:
                some = [row for row in rows if row["method"] == name and row["d"] == d and key in row]
                axis.loglog([row["classes"] for row in some], [row[key] for row in some], marker="o", label=name)
            axis.set_title(f"{title} (d = {d})", fontsize=9)
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("classes")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    write_atomically(path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[160, 640], choices=[160, 640])
    parser.add_argument("--methods", nargs="+", default=[*BYTES], choices=[*BYTES], metavar="METHOD")
    parser.add_argument("--repeat", type=int, default=3, help="rounds through all methods")
    parser.add_argument("--memory", type=float, default=6.0, help="gigabytes a method may take")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scaling"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(arguments.classes, arguments.dims, int(arguments.memory * 1e9), arguments.methods, arguments.repeat)
    rows = joined(arguments.out / "scaling.json", rows)
    write_json(arguments.out / "scaling.json", {"environment": environment(), "rows": list(rows)})
    text = table(rows)
    write_atomically(arguments.out / "scaling.md", lambda file: file.write(text.encode()))
    plot(rows, arguments.out / "scaling.svg")
    print(text)


if __name__ == "__main__":
    main()
