"""``nocl compare``: methods on the features of one frozen network, in one table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from nocl.cli.show import shown_progress
from nocl.data import load
from nocl.experiments.compare import Contender, Contest, Heads, compare, course, stages_of
from nocl.experiments.features import extract, trained_classes
from nocl.plumbing.files import write_atomically, write_json
from nocl.report import paired as paired_test
from nocl.report.compare import arena_numbers, arena_table
from nocl.results import RunResult

compare_app = typer.Typer()


@compare_app.command("compare")
def compare_command(
    methods: Annotated[
        list[str], typer.Argument(help="Methods on a frozen network, as NAME or NAME@key=value,key=value.")
    ],
    backbone_from: Annotated[Path, typer.Option(help="The network's file; all features come from it.")],
    dataset: Annotated[str, typer.Option(help="See `nocl list datasets`.")] = "cifar100",
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets; default NOCL_DATA.")] = None,
    partition: Annotated[list[str] | None, typer.Option(help="Base+each x sessions in percent; repeatable.")] = None,
    orders: Annotated[int, typer.Option(min=1, help="How many orders of the novel classes.")] = 1,
    backbone: Annotated[str, typer.Option(help="The kind of network in the file.")] = "reduced_resnet18",
    seed: Annotated[int, typer.Option(help="Seed of the learners, the same for all orders.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results and the table.")] = Path("runs/arena"),
    cache: Annotated[Path | None, typer.Option(help="Folder of computed features; default the user's cache.")] = None,
    allow_leak: Annotated[
        bool, typer.Option("--allow-leak", help="Run partitions whose novel classes the network has seen; marked.")
    ] = False,
    probe: Annotated[bool, typer.Option(help="Add the joint linear probe.")] = True,
    paired: Annotated[
        bool, typer.Option("--paired", help="Test the first method against each other one over the same orders.")
    ] = False,
    exact_batches: Annotated[
        bool, typer.Option("--exact-batches", help="Batches of ten also for methods that do not depend on them.")
    ] = False,
) -> None:
    """Compare methods on identical features of one frozen network."""
    contenders = [Contender.parse(text) for text in methods]
    data = load(dataset, root=root)
    trained = trained_classes(backbone_from)
    courses = [
        course(each, data.n_classes, order, trained, allow_leak=allow_leak)
        for each in partition or ["60+4x10"]
        for order in range(orders)
    ]
    place = cache or platformdirs.user_cache_path("nocl") / "features"
    heads = Heads()

    def contest(contender: Contender | None = None) -> Contest:
        stages = None if contender is None else stages_of(contender, backbone, data.image_size)
        found = extract(data, backbone_from, cache=place, backbone=backbone, stages=stages)
        return Contest(found, backbone_from, backbone, seed, exact_batches, heads)

    with shown_progress():
        results = compare(contenders, contest, courses, out / "runs")
        bound = _bound(contest(), out / "runs" / "joint-linear-probe.json") if probe else None
    table = arena_table(results, bound)
    write_atomically(out / "table.md", lambda file: file.write(table.encode()))
    write_json(out / "numbers.json", {"features": contest().data.origin, "rows": arena_numbers(results, bound)})
    typer.echo(table)
    for number in range(1, len(contenders) if paired else 1):
        some = results[number * len(courses) : (number + 1) * len(courses)]
        for each in dict.fromkeys(one.partition for one in courses):
            first, other = (_of(each, group) for group in (results[: len(courses)], some))
            typer.echo(f"{each} {paired_test(first, other).sentence(methods[0], methods[number])}")
    typer.echo(f"{out / 'table.md'}\n{out / 'numbers.json'}")


def _of(partition: str, results: Sequence[RunResult]) -> list[RunResult]:
    return [result for result in results if result.stream["partition"] == partition]


def _bound(contest: Contest, path: Path) -> RunResult:
    """The probe of these features, from an earlier time if it is there."""
    if path.exists() and RunResult.load(path).stream.get("features") == json.loads(json.dumps(contest.data.origin)):
        return RunResult.load(path)
    bound = contest.bound()
    bound.save(path)
    return bound
