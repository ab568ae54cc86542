"""What PASS and SSRE keep and learn in one pass: their terms switched off one by one, from one base network.

    python benchmarks/distilling.py --weights BASE.safetensors [--dataset glyphs] [--out FILE]

For each variant: Acc, base, novel and HM after the last session, how many of the novel test images are answered with a
base class, and the mean terms of the loss in the first and the last session. ``--weights`` is a base network of order 0
of the partition, for glyphs the one that ``make demo`` leaves in ``runs/demo/cache``.
"""

import argparse
from pathlib import Path

from nocl.experiments.job import Job
from nocl.plumbing.files import file_digest, write_json
from nocl.results import RunResult, environment
from nocl.run import run

HEADS = {"head_epochs": 20, "head_rounds": 1}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "pass": ("pass", {}),
    "pass, answer by means": ("pass", {"answer": "mean"}),
    "pass, nothing keeps features": ("pass", {"weight_kd": 0.0}),
    "pass, nothing reminds": ("pass", {"weight_proto": 0.0}),
    "pass, neither": ("pass", {"weight_kd": 0.0, "weight_proto": 0.0}),
    "pass, batch statistics kept": ("pass", {"freeze_batchnorm": True}),
    "pass, a tenth of the rate": ("pass", {"lr": 1e-4}),
    "pass, both": ("pass", {"lr": 1e-4, "freeze_batchnorm": True}),
    "ssre": ("ssre", {}),
    "ssre, answer by means": ("ssre", {"answer": "mean"}),
    "ssre, nothing keeps features": ("ssre", {"weight_kd": 0.0}),
    "ssre, nothing reminds": ("ssre", {"weight_proto": 0.0}),
    "ssre, neither": ("ssre", {"weight_kd": 0.0, "weight_proto": 0.0}),
}
OUT = Path(__file__).parent / "results" / "distilling.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS), help="default: all")
    parser.add_argument("--weights", required=True, help="safetensors file of the base network")
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--partition", default="60+4x10")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    where, rows = environment("cpu"), []
    data = {"test_per_class": 10} if options.dataset == "glyphs" else {}
    for name in options.variants:
        method, params = VARIANTS[name]
        params = {"weights": options.weights, "recipe": HEADS, **params}
        job = Job(method, params, dataset=options.dataset, options=data, partition=options.partition, seed=0)
        stream = job.stream()
        row = {"variant": name, **numbers(run(job.learner(stream.image_size), stream))}
        rows.append(row)
        print(row, flush=True)
        about = {"command": "python benchmarks/distilling.py", "dataset": options.dataset, "data": data, "seed": 0}
        base = {"partition": options.partition, "weights": file_digest(Path(options.weights)), "heads": HEADS}
        write_json(options.out, {**about, **base, "environment": where, "rows": rows})


def numbers(result: RunResult) -> dict[str, object]:
    """What is printed of one run."""
    terms = {name: [curve[0], curve[-1]] for name, curve in result.log.items() if name != "base_loss"}
    return {
        "acc": result.acc,
        "base": result.base_acc,
        "novel": result.novel_acc,
        "hm": result.hm,
        "novel_answered_as_base": answered_as_base(result),
        "terms_first_and_last_session": terms,
    }


def answered_as_base(result: RunResult) -> float:
    """Share of the novel classes' test images, after the last session, that got the label of a base class."""
    last = result.confusion[-1]
    return last["novel_as_base"] / sum(last[f"novel_{answer}"] for answer in ("right", "as_base", "as_novel"))


if __name__ == "__main__":
    main()
