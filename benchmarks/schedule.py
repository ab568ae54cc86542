"""The paper's base training against one cycle in a quarter of the epochs, CIFAR-100, 60+4x10.

    NOCL_DATA=DATA python benchmarks/schedule.py constant --epochs 16 --out RUNS
    NOCL_DATA=DATA python benchmarks/schedule.py onecycle --epochs 4 --out RUNS
    python benchmarks/schedule.py table

``constant`` is SGD at 0.1 without momentum, as the paper has it; ``onecycle`` warms up to 0.1 and falls to zero along a
cosine, with momentum 0.9. All else is equal: cross-entropy, batch 100, no augmentation, class order and seed 0. NCM is
run on the networks because it adds nothing of its own. ``--backbone tiny_resnet18`` takes a quarter of the time. A
stopped training goes on where it was; a finished run is copied to
``benchmarks/results/schedule/BACKBONE-SCHEDULE-EPOCHS.json``, from which ``table`` makes the table.
"""

import argparse
from pathlib import Path

from nocl.experiments.job import Job
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.results import RunResult
from nocl.run import run

RESULTS = Path(__file__).parent / "results" / "schedule"


def train(schedule: str, epochs: int, backbone: str, out: Path, results: Path) -> None:
    """One base session and its ten sessions after it."""
    recipe: dict[str, JSON] = {"schedule": schedule, "epochs": epochs, "lr": 0.1}
    job = Job("ncm", {"recipe": recipe, "backbone": backbone}, dataset="cifar100")
    stream = job.stream()
    result = run(job.learner(stream.image_size), stream, folder=out / job.name(), cache=out / "cache")
    write_json(results / f"{backbone}-{schedule}-{epochs}.json", result.to_json())


def table(results: Path) -> str:
    """Markdown of all finished runs, the shorter training first."""
    lines = [
        "| network | schedule | epochs | base session | Acc | base | novel | HM | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = [(*path.stem.split("-"), RunResult.load(path)) for path in results.glob("*.json")]
    for backbone, schedule, epochs, result in sorted(found, key=lambda row: (row[0], int(row[2]))):
        values = (result.accuracy[0][0], result.acc, result.base_acc, result.novel_acc, result.hm)
        shown = " | ".join("" if value is None else f"{100 * value:.2f}" for value in values)
        lines.append(f"| {backbone} | {schedule} | {epochs} | {shown} | {result.seconds[0] / 60:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("constant", "onecycle", "table"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backbone", default="reduced_resnet18")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for runs and networks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.what != "table":
        train(args.what, args.epochs, args.backbone, args.out, args.results)
    print(table(args.results))


if __name__ == "__main__":
    main()
