"""Memory of a store over many lessons and predictions: it must not grow.

python -m benchmarks.memory_flat [--lessons 10000] [--predictions 50000]
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from tests.support.practice_models import fitted, pictures

from nocl.app.serve.store import Store
from nocl.plumbing.files import write_json
from nocl.results import environment


def resident() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory_flat.json"))
    parser.add_argument("--lessons", type=int, default=10_000)
    parser.add_argument("--predictions", type=int, default=50_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    where, x, measured = environment(torch.device("cpu")), pictures("red", 1), []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        fitted(n=2).save(Path(folder) / "m.nocl")
        store = Store(Path(folder) / "m.nocl", snapshot_bytes=1 << 20)
        for name, count, act in (
            ("lessons", given.lessons, lambda: store.learn([(x, "red")])),
            ("predictions", given.predictions, lambda: store.model.learner_.decision_function(x)),
        ):
            for number in range(count):
                if number % max(1, count // 10) == 0 and number:
                    measured.append({name: number, "MB": round(resident(), 1)})
                act()
            measured.append({name: count, "MB": round(resident(), 1)})
        store.close()
    write_json(given.out, {
        "command": f"python -m benchmarks.memory_flat --lessons {given.lessons} --predictions {given.predictions}",
        "environment": where, "measured": measured,
    })  # fmt: skip


if __name__ == "__main__":
    main()
