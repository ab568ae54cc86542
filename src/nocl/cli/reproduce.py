"""``nocl reproduce``: a table or figure of the paper by one command; and the summary of what was reproduced."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from nocl.cli.live import GridView
from nocl.data import MissingDataError
from nocl.experiments.given import Split, arena_folder, run_arena, split
from nocl.experiments.grid import RUNS, Engine, Event, Outcome, base_of, finished, folder_of, run_grid
from nocl.experiments.grid.estimate import feature_seconds, seconds_on_features, total_seconds
from nocl.experiments.job import Job, parse_settings
from nocl.experiments.paper.reproduce import committed, rebuild, save_plan, write_summary
from nocl.experiments.paper.tables import (
    EXPERIMENTS,
    MEMORIES,
    Choice,
    Experiment,
    Run,
    chosen_rows,
    describe,
    find,
    plan,
)
from nocl.plumbing.files import write_json
from nocl.plumbing.types import JSON
from nocl.report.tables import duration
from nocl.results import RunResult
from nocl.run import RESULT

reproduce_app = typer.Typer()


@reproduce_app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure; without it, they are listed.")] = None,
    dataset: Annotated[str, typer.Option(help="Data sets, separated by commas; default: the paper's.")] = "",
    methods: Annotated[str, typer.Option(help="Rows or methods, separated by commas; default: all.")] = "",
    seeds: Annotated[str, typer.Option(help="How many class orders, or a list: 3 is 0,1,2; '4,' is 4 alone.")] = "3",
    memory: Annotated[str, typer.Option(help="Memory sizes of methods that keep exemplars.")] = "1000,2000",
    epochs: Annotated[int | None, typer.Option(help="Epochs of the base session.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Parameter of every run, key=value.")] = None,
    scale: Annotated[str, typer.Option(help="full, or small: embedded data and a tiny network, a trial.")] = "full",
    backbone_from: Annotated[Path | None, typer.Option(help="Take the base network from this file.")] = None,
    allow_leak: Annotated[
        bool, typer.Option("--allow-leak", help="Run partitions whose novel classes that network has seen; marked.")
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets; default NOCL_DATA.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for runs, base networks and tables.")] = Path("runs/reproduce"),
    keep: Annotated[Path | None, typer.Option(help="Copy finished results there, to be committed.")] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Runs at a time; default: as the cores allow.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each run.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; default: a local Ray.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each run, for Ray.")] = 0.0,
    retries: Annotated[int, typer.Option(help="How often Ray tries a lost run again.")] = 3,
    log: Annotated[str | None, typer.Option(help="tensorboard: curves in each run's folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and the time they may take.")] = False,
    summary: Annotated[Path | None, typer.Option(help="Write the summary of committed results into this file.")] = None,
    results: Annotated[Path, typer.Option(help="Committed results, for --summary.")] = Path("benchmarks/results"),
) -> None:
    """Run a table or figure of the paper and write it beside the paper's numbers; go on where it stood."""
    if summary is not None:
        write_summary(committed(results), summary)
        typer.echo(summary)
        return
    if name is None:
        for experiment in EXPERIMENTS.values():
            typer.echo(f"{experiment.name:20} {experiment.title}")
        return
    experiment = find(name)
    choice = Choice(
        datasets=_names(dataset), methods=_names(methods), seeds=parse_seeds(seeds),
        memories=tuple(int(size) for size in _names(memory)) or MEMORIES, epochs=epochs, small=_is_small(scale),
        weights=None if backbone_from is None else str(backbone_from), root=None if root is None else str(root),
        device=device, settings=parse_settings(settings or []),
    )  # fmt: skip
    runs = plan(experiment, choice) if address else _with_data(plan(experiment, choice))
    given = Split(grid=runs) if backbone_from is None else split(runs, backbone_from, allow_leak=allow_leak)
    power = Engine(engine, workers, threads, address, gpus, retries)
    if dry_run:
        _show_plan(experiment, choice, given, out, power)
        return
    _say_what_is_left_out(experiment, choice, given)
    outcomes = _run(experiment, choice, given, out, power, log)
    if keep is not None:
        for outcome in outcomes:
            if outcome.result is not None:
                write_json(keep / experiment.name / f"{outcome.folder.name}.json", portable(outcome.result))
    _finish(outcomes, rebuild(out / experiment.name))


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


def portable(result: RunResult) -> dict[str, JSON]:
    """The result without the folder that its weights were read from."""
    values = result.to_json()
    params = values["params"]
    if isinstance(params, dict) and isinstance(weights := params.get("weights"), str):
        params["weights"] = Path(weights).name
    return values


def _run(
    experiment: Experiment, choice: Choice, given: Split, out: Path, engine: Engine, log: str | None
) -> list[Outcome]:
    runs = [*given.arena, *given.grid]
    places = [(run.row, run.memory, _folder(run, given, out) / RESULT) for run in runs]
    save_plan(experiment, chosen_rows(experiment, choice.methods), places, out / experiment.name)
    try:
        with GridView([describe(run) for run in runs]) as view:
            outcomes = []
            if choice.weights is not None:
                features = platformdirs.user_cache_path("nocl") / "features"  # those of `nocl compare`
                outcomes = run_arena(given.arena, Path(choice.weights), out, features, view.hear)

            def hear(event: Event) -> None:
                view.hear(event._replace(number=event.number + len(given.arena)))

            return outcomes + run_grid([run.job for run in given.grid], out, engine=engine, log=log, on_event=hear)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise


def _with_data(runs: list[Run]) -> list[Run]:
    """The runs whose data set is here; a set that is not is named once."""
    here: dict[str, bool] = {}
    for run in runs:
        if run.job.dataset not in here:
            try:
                run.job.stream()
            except MissingDataError as error:
                typer.echo(f"{run.job.dataset} is left out: {error}", err=True)
                here[run.job.dataset] = False
            else:
                here[run.job.dataset] = True
    if runs and not any(here.values()):
        raise MissingDataError(
            "none of the data sets is here; fetch one with `nocl data get` or name another --dataset"
        )
    return [run for run in runs if here[run.job.dataset]]


def _folder(run: Run, given: Split, out: Path) -> Path:
    return arena_folder(run.job, out) if run in given.arena else folder_of(run.job, out)


def _say_what_is_left_out(experiment: Experiment, choice: Choice, given: Split) -> None:
    for row in chosen_rows(experiment, choice.methods):
        if not row.exists:
            typer.echo(f"{row.label}: nocl has no method {row.method!r}; its cells stay empty", err=True)
    for run in given.left_out:
        typer.echo(f"{describe(run)}: left out, its base classes are not those of the given network", err=True)


def _finish(outcomes: list[Outcome], paths: list[Path]) -> None:
    typer.echo(paths[0].read_text("utf-8"))
    for path in paths:
        typer.echo(path)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        typer.echo(f"\nFAILED {outcome.job.name()}\n{outcome.error}", err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} runs failed; the same command tries them again", err=True)
        sys.exit(1)


def _show_plan(experiment: Experiment, choice: Choice, given: Split, out: Path, engine: Engine) -> None:
    left: list[Run] = []
    trained: set[str] = set()
    runs = [*given.arena, *given.grid]
    for run in runs:
        folder = _folder(run, given, out)
        state = "to run"
        if (folder / RESULT).exists():
            trained.add(base_of(run.job))
            so_far = RunResult.load(folder / RESULT)
            state = "finished" if so_far.finished else f"begun: {len(so_far.accuracy) - 1} sessions"
        if finished(folder) is None:
            left.append(run)
        typer.echo(f"{state:18} {describe(run):44} {folder.name}")
    _say_what_is_left_out(experiment, choice, given)
    workers, threads = engine.shares(len(left))
    bases = {base_of(run.job) for run in left if not choice.weights} - trained
    known = [result for path in (out / RUNS).glob(f"*/{RESULT}") if (result := RunResult.load(path)).finished]
    seconds = total_seconds([run.job for run in left if run in given.grid], known, trained, workers)
    seconds += _arena_seconds([run.job for run in left if run in given.arena], known)
    typer.echo(
        f"{len(runs)} runs: {len(runs) - len(left)} finished, {len(left)} to run; {len(bases)} base networks to train; "
        f"roughly {duration(seconds)} with {workers} workers of {threads} threads"
    )


def _arena_seconds(jobs: Sequence[Job], known: list[RunResult]) -> float:
    """Features of each data set once, each method's base session once, and all orders; one after another."""
    seconds = sum(feature_seconds(job) for job in {job.dataset: job for job in jobs}.values())
    for job in {job.with_changes(seed=0).digest(): job for job in jobs}.values():
        needed = seconds_on_features(job, known)
        orders = sum(job.with_changes(seed=0).digest() == other.with_changes(seed=0).digest() for other in jobs)
        seconds += needed.base + orders * needed.rest
    return seconds


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _is_small(scale: str) -> bool:
    if scale not in ("full", "small"):
        raise ValueError(f"scale {scale!r}: full or small")
    return scale == "small"
