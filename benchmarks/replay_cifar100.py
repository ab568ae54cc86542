"""The replay baselines on CIFAR-100, 60+4x10, one after the other: one command that goes on where it was stopped.

    NOCL_DATA=DATA python benchmarks/replay_cifar100.py --weights BASE.safetensors --out RUNS

Each method starts from the same base network (``--weights``) with a memory of 1,000 images, class order and seed 0,
and otherwise its own defaults. ``--out`` keeps one folder a method; a finished run is copied to
``benchmarks/results/replay/NAME.json``. Give method names to run only those.
"""

import argparse
from pathlib import Path

from nocl.experiments.job import Job
from nocl.plumbing.files import write_json
from nocl.results import RunResult
from nocl.run import run

CHEAPEST_FIRST = ("mir", "gdumb", "dvc", "aser", "scr", "scr_ft", "dvc_ft")
RESULTS = Path(__file__).parent / "results" / "replay"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(CHEAPEST_FIRST), help="default: all, cheapest first")
    parser.add_argument("--weights", required=True, help="safetensors file of the base network")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs' states")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for finished results")
    parser.add_argument("--memory-size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the class order and of the method")
    options = parser.parse_args()
    for name in options.methods:
        method, _, preset = name.partition("_")
        params = {"weights": options.weights, "memory_size": options.memory_size}
        job = Job(method, params, preset=preset or None, dataset="cifar100", partition="60+4x10", seed=options.seed)
        stream = job.stream()
        learner = job.learner(stream.image_size)
        result = run(learner, stream, folder=options.out / name, on_session=lambda r, name=name: show(name, r))
        write_json(options.results / f"{name}.json", portable(result))


def show(name: str, result: RunResult) -> None:
    """One line after each session."""
    novel, hm = result.novel_acc, result.hm
    print(
        f"{name} session {len(result.accuracy) - 1}: acc {100 * result.acc:.1f} base {100 * result.base_acc:.1f} "
        f"novel {'-' if novel is None else f'{100 * novel:.1f}'} hm {'-' if hm is None else f'{100 * hm:.1f}'} "
        f"{result.seconds[-1]:.0f} s",
        flush=True,
    )


def portable(result: RunResult) -> dict[str, object]:
    """The result without the folder that the weights were read from."""
    values = result.to_json()
    values["params"]["weights"] = Path(values["params"]["weights"]).name
    return values


if __name__ == "__main__":
    main()
