"""``nocl reproduce``: run a table or figure of the paper, and write the summary of all that was reproduced."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nocl.cli.options import AllowLeak, BackboneFrom, Cache, DeviceThere, Epochs, Root, Settings, Threads, Workers
from nocl.cli.show import shown_progress
from nocl.data import loader_of
from nocl.experiments.grid import Engine, Outcome
from nocl.experiments.job import parse_settings
from nocl.experiments.networks import KEPT
from nocl.experiments.paper.experiment import Experiment, Planned, Row
from nocl.experiments.paper.reproduce import foreseen, keep, kept_used, perform, rebuild, with_data
from nocl.experiments.paper.summary import committed, write_summary
from nocl.experiments.paper.tables import BEYOND, EXPERIMENTS, MEMORIES, Choice, chosen_rows, find, plan

reproduce_app = typer.Typer(add_completion=False)


@reproduce_app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of a table or figure; without a name, all are listed.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Data sets, separated by commas; default: the paper's.")] = "",
    methods: Annotated[str, typer.Option(help="Rows or methods, separated by commas; default: all.")] = "",
    seeds: Annotated[
        str, typer.Option(help="Number of random seeds, or a list: 3 means 0,1,2; '4,' means 4 alone.")
    ] = "3",
    streams: Annotated[
        str, typer.Option(help="Kinds of streams, separated by commas, for tables that compare streams.")
    ] = "",
    test_every: Annotated[
        int | None, typer.Option(help="Also test within sessions, after every so many images.")
    ] = None,
    cache: Cache = None,
    memory: Annotated[str, typer.Option(help="Memory sizes of methods that keep exemplars.")] = "1000,2000",
    epochs: Epochs = None,
    settings: Settings = None,
    scale: Annotated[
        str, typer.Option(help="full, or small for a quick trial with embedded data and a tiny network.")
    ] = "full",
    backbone_from: BackboneFrom = None,
    networks: Annotated[
        str,
        typer.Option(help="Folder of trained base networks, for methods on a frozen network; none: train them all."),
    ] = str(KEPT),
    allow_leak: AllowLeak = False,
    root: Root = None,
    device: DeviceThere = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for runs, base networks and tables.")] = Path("runs/reproduce"),
    keep_in: Annotated[
        Path | None, typer.Option("--keep", help="Copy finished results to this folder, to be committed.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Workers = None,
    threads: Threads = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster; default: start Ray here.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each run, for Ray.")] = 0.0,
    retries: Annotated[int, typer.Option(help="How often Ray tries a lost run again.")] = 3,
    log: Annotated[str | None, typer.Option(help="tensorboard: curves in each run's folder.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the runs, which of them are finished, and how long such runs took."),
    ] = False,
    summary: Annotated[Path | None, typer.Option(help="Write the summary of committed results into this file.")] = None,
    results: Annotated[Path, typer.Option(help="Committed results, for --summary.")] = Path("benchmarks/results"),
) -> None:
    """Run a table or figure of the paper and compare it with the paper's numbers; continues after an interruption."""
    if summary is not None:
        write_summary(committed(results), summary)
        typer.echo(summary)
        return
    if name is None:
        _list_experiments()
        return
    experiment, engine_there = find(name), Engine(engine, workers, threads, address, gpus, retries)
    for each in _names(dataset):
        loader_of(each)
    choice = Choice(
        datasets=_names(dataset), methods=_names(methods), seeds=parse_seeds(seeds),
        memories=tuple(int(size) for size in _names(memory)) or MEMORIES, epochs=epochs, small=_is_small(scale),
        network=None if backbone_from is None else str(backbone_from), networks=_folder(networks),
        allow_leak=allow_leak,
        root=None if root is None else str(root), device=device, settings=parse_settings(settings or []),
        streams=_names(streams), test_every=test_every, feature_cache=None if cache is None else str(cache),
    )  # fmt: skip
    runs, rows = plan(experiment, choice), chosen_rows(experiment, choice.methods)
    for row in (row for row in rows if not row.exists):
        typer.echo(f"{row.label}: nocl has no method {row.method!r}; its cells stay empty", err=True)
    for line in kept_used(runs):
        typer.echo(line, err=True)
    if dry_run:
        typer.echo("\n".join(foreseen(runs, out)))
        return
    if not address:  # the nodes of a cluster have their own data
        runs, missing = with_data(runs)
        for dataset_name, why in missing.items():
            typer.echo(f"{dataset_name} is left out: {why}", err=True)
    outcomes = _perform(experiment, rows, runs, out, engine_there, log)
    paths = rebuild(out / experiment.name)
    if keep_in is not None:
        keep(experiment, outcomes, paths, keep_in / experiment.name)
    typer.echo(paths[0].read_text("utf-8"))
    typer.echo("\n".join(str(path) for path in paths))
    tell_failures(outcomes)


def _list_experiments() -> None:
    for experiment in EXPERIMENTS.values():
        typer.echo(f"{experiment.name:20} {experiment.title}")
    for experiment in BEYOND.values():
        typer.echo(f"{experiment.name:20} Beyond the paper: {experiment.title}")


def _perform(
    experiment: Experiment, rows: Sequence[Row], runs: Sequence[Planned], out: Path, engine: Engine, log: str | None
) -> list[Outcome]:
    try:
        with shown_progress():
            return perform(experiment, rows, runs, out, engine, log)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to continue", err=True)
        raise


def tell_failures(outcomes: Sequence[Outcome]) -> None:
    """Print why runs failed; ends the program with an error if there are any."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        typer.echo(f"\nFAILED {outcome.job.name()}\n{outcome.error}", err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} runs failed; the same command tries them again", err=True)
        sys.exit(1)


def parse_seeds(text: str) -> tuple[int, ...]:
    """A count, or a list of seeds.

    >>> parse_seeds("3"), parse_seeds("4,"), parse_seeds("0,2")
    ((0, 1, 2), (4,), (0, 2))
    """
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"seeds {text!r}: write how many, such as 3, or a list, such as 0,2") from None
    if not numbers or min(numbers) < 0 or (numbers == (0,) and "," not in text):
        raise ValueError(f"seeds {text!r}: at least one, and none below 0")
    return numbers if "," in text else tuple(range(numbers[0]))


def _folder(networks: str) -> str | None:
    """The folder of kept networks; the usual one need not be there."""
    if networks == "none":
        return None
    if not Path(networks).is_dir() and networks != str(KEPT):
        raise FileNotFoundError(f"--networks {networks}: no such folder; write none to train all base networks")
    return networks


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _is_small(scale: str) -> bool:
    if scale not in ("full", "small"):
        raise ValueError(f"scale {scale!r}: full or small")
    return scale == "small"
