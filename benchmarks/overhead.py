"""The paper's overhead table as ratios: time, images through the network and memory of a step on ten new images.

    python benchmarks/overhead.py [--rows dsr scr ocm] [--steps 5] [--repeat 3]

Each row runs in a process of its own on one thread, on images made of noise: a base session that fills a memory of
1,000 images (no network is trained), then ``--steps`` batches of ten new images after one to warm up. Time is processor
time of the process, so that other programs do not count, and includes a two-hundredth of a session's end. Images are
counted as they pass any backbone of the learner; those that build a graph also go backward. Peak memory is that of the
process, the libraries' part included, which is also given alone. The paper's table has seconds and GB on an RTX 3090
with replay batches of 10, so only ratios compare.

GDumb does nothing for a batch and trains on its memory whenever answers are asked for after a change; that training is
counted apart, as images through it and as seconds estimated from ``--steps`` of its steps.
Writes results/overhead.json: the rows measured now in place of those of the same name, each with its own environment.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn

from nocl.learner import Learner
from nocl.methods import METHODS, make
from nocl.nets import Backbone
from nocl.plumbing.files import write_json
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, Batch
from nocl.results import environment, peak_memory

SESSION = 200  # batches of ten in a session of four classes of CIFAR-100, which share its end
RESULTS = Path(__file__).parent / "results"
PAPER = {"dsr": (35, 1.4), "scr": (165, 1.8), "dvc": (126, 1.6), "ocm": (561, 12.8), "alice": (512, 1.9)}
PAPER["ssre"] = (291, 3.2)
ROWS: dict[str, tuple[str, dict[str, JSON]]] = {
    "dsr": ("dsr", {}),
    "dsr, fast": ("dsr", {"preset": "fast"}),
    "mir": ("mir", {}),
    "dvc": ("dvc", {}),
    "scr, replay 10": ("scr", {"replay_batch": 10}),
    "scr": ("scr", {}),
    "aser": ("aser", {}),
    "gdumb": ("gdumb", {}),
    "ocm, replay 10": ("ocm", {"replay_batch": 10, "base_epochs": 0}),
    "ocm": ("ocm", {"base_epochs": 0}),
}


class Passages:
    """Counts images that pass the backbones of a learner, and those of them that build a graph."""

    def __init__(self, learner: Learner) -> None:
        self.forward = self.backward = 0
        for module in learner.modules():
            if isinstance(module, Backbone):
                module.register_forward_hook(self.count)

    def count(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.forward += len(inputs[0])
        self.backward += len(inputs[0]) if output.requires_grad else 0


def noise(labels: range, n: int, size: int, seed: int) -> list[Batch]:
    """``n`` batches of noise."""
    draw = generator(seed, "overhead")
    x = torch.randint(256, (n * size, 3, 32, 32), generator=draw, dtype=torch.uint8)
    y = torch.tensor(labels)[torch.arange(n * size) % len(labels)]
    return [Batch(a, b) for a, b in zip(x.split(size), y.split(size))]


def measure(row: str, steps: int) -> dict[str, JSON]:
    """One row, in this process."""
    torch.set_num_threads(1)
    libraries = peak_memory()
    method, params = ROWS.get(row, (row, {}))
    params = {**METHODS[method].presets.get(str(params.get("preset")), {}), **params}
    params.pop("preset", None)
    learner = make(method, **{"recipe": {"epochs": 0, "head_epochs": 0, "compile": False}, **params})
    learner.fit_base(noise(range(60), 11, 100, seed=0))
    passages, times = Passages(learner), []
    for x, y in noise(range(60, 64), steps + 1, 10, seed=1):
        start = process_time()
        learner.observe(x, y)
        times.append(process_time() - start)
    start = process_time()
    learner.end_session()
    ending = process_time() - start
    new = 10 * (steps + 1)
    out: dict[str, JSON] = {
        "row": row,
        "method": method,
        "params": params,
        "ms_per_10_images": round(1000 * (statistics.median(times[1:]) + ending / SESSION), 1),
        "end_session_ms": round(1000 * ending, 1),
        "forward_per_new_image": round(passages.forward / new, 2),
        "backward_per_new_image": round(passages.backward / new, 2),
        "state_bytes": learner.state_bytes(),
    }
    if method == "gdumb":
        out |= training_of_gdumb(learner, steps)
    return out | {"peak_memory": peak_memory(), "peak_memory_of_libraries": libraries}


def training_of_gdumb(learner: Learner, steps: int) -> dict[str, JSON]:
    """What one evaluation costs: all epochs, from the processor time of a few steps."""
    params = learner.get_params()
    epochs, size, kept = int(params["epochs"]), int(params["batch_size"]), int(learner.memory.filled)  # type: ignore
    few = make("gdumb", **{**params, "epochs": 1, "memory_size": size * steps, "weights": None})
    few.fit_base(noise(range(size), steps, size, seed=2))
    start = process_time()
    few.train_on_memory()  # type: ignore[operator]
    seconds = (process_time() - start) / steps * epochs * kept / size
    return {"backward_per_evaluation": epochs * kept, "seconds_per_evaluation": round(seconds, 1)}


def show(rows: list[dict[str, JSON]]) -> None:
    """The table, with ratios to DSR and the paper's."""
    dsr = next((row for row in rows if row["row"] == "dsr"), None)
    heads = {"": 16, "ms / 10": 10, "forward": 9, "backward": 9, "peak MB": 9, "time x": 8, "paper": 7, "mem x": 7}
    print("".join(f"{name:>{width}}" for name, width in heads.items()) + f"{'paper':>7}")
    for row in rows:
        peak, ms = row["peak_memory"], row["ms_per_10_images"]
        ours = ("", "") if dsr is None else (f"{ms / dsr['ms_per_10_images']:.1f}", f"{peak / dsr['peak_memory']:.1f}")
        paper = PAPER.get(str(row["method"]))
        theirs = ("", "") if paper is None else (f"{paper[0] / 35:.1f}", f"{paper[1] / 1.4:.1f}")
        print(
            f"{row['row']:16}{ms:10.1f}{row['forward_per_new_image']:9.1f}{row['backward_per_new_image']:9.1f}"
            f"{peak / 1e6:9.0f}{ours[0]:>8}{theirs[0]:>7}{ours[1]:>7}{theirs[1]:>7}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="rows of the table, or any method's name")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="times each row is measured, in alternating order")
    parser.add_argument("--out", type=Path, default=RESULTS / "overhead.json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one row, for the child process
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.steps)))
        return
    command = f"python benchmarks/overhead.py --steps {options.steps} --repeat {options.repeat} --rows "
    command += " ".join(map(repr, options.rows))
    before = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    found: dict[str, list[dict[str, JSON]]] = {row: [] for row in options.rows}
    for number in range(options.repeat):
        for row in options.rows if number % 2 == 0 else reversed(options.rows):
            child = [sys.executable, __file__, "--measure", row, "--steps", str(options.steps)]
            found[row].append(json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout))
            print(found[row][-1], flush=True)
    about: dict[str, JSON] = {"command": command, "load_average": round(os.getloadavg()[0], 1)}
    about |= {"environment": environment()}
    new = {row: {**middle(some), **about} for row, some in found.items()}
    rows = [new.pop(row["row"], row) for row in before] + list(new.values())
    write_json(options.out, {"rows": rows})
    show(rows)


def middle(runs: list[dict[str, JSON]]) -> dict[str, JSON]:
    """The medians of times and memory over repetitions; counts of images are the same in all of them."""
    names = ("ms_per_10_images", "end_session_ms", "peak_memory")
    return {**runs[0], **{name: statistics.median(run[name] for run in runs) for name in names}, "runs": len(runs)}  # type: ignore


if __name__ == "__main__":
    main()
