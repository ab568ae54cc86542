"""What DSR's refinement does after each base strategy: T = 20 beside T = 0 on the same network and projection.

    python benchmarks/refinement.py --data FOLDER --epochs 2 [ce sc sc+ssl sc+da]

The whole problem is made of base classes' training images (36 pseudo-base, 24 pseudo-novel; see
:mod:`nocl.experiments.base_copy`). Network and projection are trained together by the strategy, the tiny network and
few epochs, at the recipe of ``results/base-strategies``. ``--dim`` is D and ``--samples`` K, both smaller than the
paper's, for the time. ``sc, two passes`` is ``sc`` with its two views through the network one after the other, each
with batch statistics of its own, as the public code has them. Strategies that are in the file of results are not run
again. Writes results/refinement.json.
"""

import json

import torch
from torch import Tensor

from bank import keep, parser, percent
from nocl.experiments.base_copy import PARTITION
from nocl.experiments.job import Job
from nocl.plumbing.types import JSON
from nocl.pretrain.objectives import Contrastive, Extractor
from nocl.results import RunResult, environment

RECIPE: dict[str, JSON] = {
    "schedule": "onecycle", "lr": 0.02, "weight_decay": 5e-4, "normalize": True, "compile": False,
}  # fmt: skip
STRATEGIES = {name: name for name in ("ce", "sc", "sc+ssl", "sc+da")} | {"sc, two passes": "refinement:TwoPasses"}
ITERATIONS = (0, 20)


class TwoPasses(Contrastive):
    """Supervised contrast whose views pass batch normalisation one after the other."""

    def loss(self, network: Extractor, x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
        images, targets = self.views(x, y, draw)
        return self.terms(torch.cat([network(self.normalise(view)) for view in images.chunk(2)]), targets)


def job(objective: str, iterations: int, epochs: int, sizes: dict[str, JSON], root: str | None) -> Job:
    """DSR on the copy after that strategy."""
    recipe: dict[str, JSON] = {**RECIPE, "objective": objective, "epochs": epochs}
    params: dict[str, JSON] = {"backbone": "tiny_resnet18", "iterations": iterations, **sizes, "recipe": recipe}
    return Job("dsr", params, dataset="cifar100", root=root, copy_partition=PARTITION)


def described(result: RunResult) -> dict[str, JSON]:
    """Scores after the last session, base accuracy after each, and how alike prototypes are."""
    alike = {name: result.log[name] for name in ("cosine_before", "cosine_after") if name in result.log}
    base = [round(100 * row[0], 2) for row in result.accuracy if row[0] is not None]
    return {**percent(result.last), "base_after_each_session": base, **alike}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("strategies", nargs="*", default=list(STRATEGIES))
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--samples", type=int, default=5)
    arguments.add_argument("--dim", type=int, default=256)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    path, root = args.out / "refinement.json", None if args.data is None else str(args.data)
    rows: list[dict[str, JSON]] = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {(row["strategy"], row["iterations"], row["epochs"]) for row in rows}
    for name in args.strategies:
        for iterations in ITERATIONS:
            if (name, iterations, args.epochs) in done:
                continue
            asked: dict[str, JSON] = {"strategy": name, "iterations": iterations, "epochs": args.epochs}
            sizes: dict[str, JSON] = {"dim": args.dim, "samples": args.samples}
            found = job(STRATEGIES[name], iterations, args.epochs, sizes, root).run(cache=args.cache)
            rows.append({**asked, **sizes, **described(found), "commit": environment()["commit"]})
            print(rows[-1], flush=True)
            keep(path, f"python benchmarks/refinement.py --epochs {args.epochs}", None, rows=list(rows))


if __name__ == "__main__":
    main()
