"""Research commands: run a method, report results, check a method of your own."""

import sys
from pathlib import Path
from traceback import format_exception
from typing import Annotated

import typer
from rich.console import Console

from nocl.checks import LEARNER_CHECKS, each_check
from nocl.cli.data import data_options
from nocl.cli.options import (
    BackboneFrom,
    Data,
    Dataset,
    Device,
    Epochs,
    NetworkEngine,
    Partition,
    Root,
    Settings,
    checked_device,
)
from nocl.cli.show import session_table, shown_progress
from nocl.experiments import report as reports
from nocl.experiments.job import Job, method_of, over, parse_settings, read_preset
from nocl.experiments.paper.reproduce import PLAN, rebuild
from nocl.plumbing.parameters import check_values
from nocl.plumbing.types import JSON
from nocl.pretrain.devices import Compute, computing
from nocl.results import RunResult
from nocl.run import RESULT

run_app = typer.Typer(add_completion=False)
WHICH_METHOD = (
    "name a method. The quickest, a minute or two on the embedded data: nocl run ncm --epochs 8 --schedule onecycle. "
    "All methods: nocl list methods"
)


@run_app.command()
def run(
    method: Annotated[str | None, typer.Argument(help="A method's name, or module:Class.")] = None,
    dataset: Dataset = "glyphs",
    root: Root = None,
    data: Data = None,
    partition: Partition = "60+4x10",
    stream: Annotated[
        str, typer.Option(help="Another stream than the partition's, such as si_blurry:base=60,sessions=5.")
    ] = "",
    test_every: Annotated[int, typer.Option(help="Also test within sessions, after every so many images.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of the method, and of the class order.")] = 0,
    order_seed: Annotated[
        int | None, typer.Option(help="Random seed of the class order alone; default: --seed.")
    ] = None,
    epochs: Epochs = None,
    schedule: Annotated[
        str | None, typer.Option(help="Learning rate of the base session: constant, onecycle, cosine, steps:60,70.")
    ] = None,
    base_batch_size: Annotated[int, typer.Option(help="Images in a batch of the base session.")] = 100,
    settings: Settings = None,
    preset: Annotated[str | None, typer.Option(help="Named settings of the method, or a file of `nocl tune`.")] = None,
    backbone_from: BackboneFrom = None,
    device: Device = "cpu",
    engine: NetworkEngine = "torch",
    devices: Annotated[int, typer.Option(help="Processes on this machine that share the base training.")] = 1,
    nodes: Annotated[
        int, typer.Option(help="Machines that share the base training; start the same command on each.")
    ] = 1,
    precision: Annotated[
        str, typer.Option(help="Number format of the base training: 32-true, bf16-mixed, 16-mixed.")
    ] = "32-true",
    out: Annotated[Path, typer.Option(help="Folder for runs and their reports.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
) -> None:
    """Run one method through the whole protocol and report it."""
    if resume is not None:
        folder, job = resume, Job.load(resume)
        checked_device(job.device)
    else:
        if method is None:
            raise ValueError(WHICH_METHOD)
        params = parse_settings(settings or [])
        if preset is not None and preset.endswith(".json"):
            params, preset = over(read_preset(Path(preset), method), params), None
        params = _with_base(params, {"epochs": epochs, "schedule": schedule}, backbone_from)
        job = Job(
            method, params, preset, dataset=dataset, options=data_options(dataset, data),
            root=None if root is None else str(root), partition=partition, arrivals=stream, test_every=test_every,
            seed=seed, order_seed=order_seed, base_batch_size=base_batch_size, device=device, engine=engine,
        )  # fmt: skip
        folder = out / job.name()
    with computing(Compute(devices, nodes, precision)):
        _run_job(job, folder)


def _with_base(params: dict[str, JSON], recipe: dict[str, JSON], weights: Path | None) -> dict[str, JSON]:
    """The parameters with what the options say about the base session."""
    asked: dict[str, JSON] = {name: value for name, value in recipe.items() if value is not None}
    if asked and isinstance(params.get("recipe", {}), dict):  # the job checks the recipe
        params = over(params, {"recipe": asked})
    return params if weights is None else {**params, "weights": str(weights)}


def _run_job(job: Job, folder: Path) -> None:
    console = Console()
    with shown_progress():
        try:
            result = job.run(folder=folder, cache=folder.parent / "cache")
        except KeyboardInterrupt:
            print(f"stopped; continue with: nocl run --resume {folder}", flush=True)
            raise
    console.print(session_table(result))
    for path in reports.write_report([result], folder).values():
        print(path)


@run_app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them, or result files.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
) -> None:
    """Compare runs: Markdown, CSV, LaTeX and one HTML page. Also updates tables of experiments in these folders."""
    for plan in sorted({plan for path in runs for plan in path.rglob(PLAN)}):
        print("\n".join(str(path) for path in rebuild(plan.parent)))
    files = sorted({file for path in runs for file in ([path] if path.is_file() else path.rglob(RESULT))})
    if not files:
        raise FileNotFoundError(f"no {RESULT} under {', '.join(str(path) for path in runs)}")
    for path in reports.write_report([RunResult.load(file) for file in files], out).values():
        print(path)


@run_app.command()
def check(
    method: Annotated[str, typer.Argument(help="A method's name, or module:Class of your own.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="Parameter, key=value; repeatable.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the traceback of each failure.")] = False,
) -> None:
    """Check that a method keeps the contract; lists every check, and the reason if it fails."""
    cls, params = method_of(method), parse_settings(settings or [])
    check_values(cls, params)
    failed = []
    for name, error in each_check(cls, params):
        meaning = (LEARNER_CHECKS[name].__doc__ or "").partition("\n")[0]
        print(f"{'ok   ' if error is None else 'FAILS'} {name}: {meaning}", flush=True)
        if error is not None:
            failed.append((name, error))
            print(f"      {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
    if not failed:
        print(f"{method} passes all {len(LEARNER_CHECKS)} checks")
        return
    for name, error in failed if verbose else ():
        print(f"\n{name}:\n{''.join(format_exception(error))}", file=sys.stderr)
    more = "" if verbose else "; --verbose shows where"
    print(f"{method} fails {len(failed)} of {len(LEARNER_CHECKS)} checks{more}", file=sys.stderr)
    raise typer.Exit(1)
