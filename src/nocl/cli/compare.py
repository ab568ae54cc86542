"""``nocl compare``: methods on the features of one frozen network, in one table."""

from pathlib import Path
from typing import Annotated

import typer

from nocl.cli.options import AllowLeak, Cache, Dataset, Device, NetworkEngine, Root, Threads, Workers
from nocl.cli.reproduce import tell_failures
from nocl.cli.show import shown_progress
from nocl.data.embeddings import NAME as EMBEDDINGS
from nocl.experiments.compare import bound, jobs_of
from nocl.experiments.grid import Engine, run_grid
from nocl.experiments.job import Job
from nocl.experiments.report import paired as paired_test
from nocl.experiments.report.compare import comparison_numbers, comparison_table
from nocl.plumbing.files import write_atomically, write_json
from nocl.plumbing.types import JSON

compare_app = typer.Typer(add_completion=False)


@compare_app.command("compare")
def compare_command(
    methods: Annotated[
        list[str], typer.Argument(help="Methods on a frozen network, as NAME or NAME@key=value,key=value.")
    ],
    backbone_from: Annotated[
        Path | None, typer.Option(help="The network's file, or `pretrained`: the weights that belong to --backbone.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="A file of `nocl embed`, instead of a network and a data set.")
    ] = None,
    test_features: Annotated[
        Path | None,
        typer.Option(help="A file of `nocl embed` for testing; default: a fifth of each class of --features."),
    ] = None,
    dataset: Dataset = "cifar100",
    root: Root = None,
    partition: Annotated[
        list[str] | None, typer.Option(help="Percent of base classes + percent in each session x sessions; repeatable.")
    ] = None,
    orders: Annotated[int, typer.Option(min=1, help="Number of random orders of the novel classes.")] = 1,
    backbone: Annotated[
        str, typer.Option(help="The kind of network, such as efficientnet_lite0@128.")
    ] = "reduced_resnet18",
    engine: NetworkEngine = "torch",
    seed: Annotated[int, typer.Option(help="Random seed of the learners, the same for all orders.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results and the table.")] = Path("runs/compare"),
    cache: Cache = None,
    allow_leak: AllowLeak = False,
    probe: Annotated[
        bool, typer.Option(help="Add a linear classifier trained on all classes at once, as an upper bound.")
    ] = True,
    paired: Annotated[
        bool, typer.Option("--paired", help="Add paired significance tests of the first method against each other one.")
    ] = False,
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = None,
) -> None:
    """Compare methods on identical features of one frozen network, or on embeddings of your own."""
    named = {"file": features, "test": test_features}
    options: dict[str, JSON] = {name: str(path) for name, path in named.items() if path is not None}
    if (backbone_from is None) == (features is None) or (test_features is not None and features is None):
        raise ValueError("give either a network (--backbone-from FILE or pretrained) or --features FILE.npz")
    if features is not None:
        dataset = EMBEDDINGS
    like = Job(
        "ncm", {} if features else {"backbone": backbone}, dataset=dataset, options=options,
        root=None if root is None else str(root), seed=seed, device=device, engine=engine,
        network_from=None if backbone_from is None else str(backbone_from),
        feature_cache=None if cache is None else str(cache), allow_leak=allow_leak,
    )  # fmt: skip
    partitions = partition or ["60+4x10"]
    with shown_progress():
        jobs = jobs_of(methods, like, partitions, orders)
        names = [f"{text} {one} order {order}" for text in methods for one in partitions for order in range(orders)]
        outcomes = run_grid(jobs, out, engine=Engine(workers=workers, threads=threads), names=names)
        top = bound(like, out / "joint-linear-probe.json") if probe else None
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    if results:
        table = comparison_table(results, top)
        write_atomically(out / "table.md", lambda file: file.write(table.encode()))
        write_json(out / "numbers.json", {"rows": comparison_numbers(results, top)})
        typer.echo(table)
        typer.echo(f"{out / 'table.md'}\n{out / 'numbers.json'}")
    tell_failures(outcomes)
    for one in partitions if paired else []:
        runs = [outcome.result for outcome in outcomes if outcome.job.partition == one and outcome.result is not None]
        first = runs[:orders]
        for number, text in enumerate(methods[1:], 1):
            test = paired_test(first, runs[number * orders : (number + 1) * orders])
            typer.echo(f"{one} {test.sentence(methods[0], text)}")
