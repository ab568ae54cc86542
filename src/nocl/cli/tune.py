"""``nocl tune``: choose a method's parameters on base-session data only."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nocl.cli.data import data_options
from nocl.cli.options import Data, Dataset, Device, Epochs, Root, Settings
from nocl.cli.show import shown_progress
from nocl.experiments.job import Job, over, parse_settings
from nocl.experiments.tune import Tuning, spaces_of
from nocl.experiments.tune import tune as choose
from nocl.plumbing.types import JSON

tune_app = typer.Typer(add_completion=False)


@tune_app.command()
def tune(
    method: Annotated[str, typer.Argument(help="A method's name, or module:Class.")],
    dataset: Dataset = "glyphs",
    root: Root = None,
    data: Data = None,
    partition: Annotated[str, typer.Option(help="Decides, with the seed, which classes are base classes.")] = "60+4x10",
    seed: Annotated[int, typer.Option(help="Random seed of the class order, the learner and the search.")] = 0,
    space: Annotated[
        list[str] | None, typer.Option(help="name=low:high, with :log or :int after it, or name=a,b,c; repeatable.")
    ] = None,
    settings: Settings = None,
    epochs: Epochs = None,
    trials: Annotated[int, typer.Option(help="Number of trials in all; run again with more to continue.")] = 20,
    metric: Annotated[
        str, typer.Option(help="What is maximised: acc, hm or average, on held-out images of base classes.")
    ] = "acc",
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder of the study; default runs/tune/METHOD-DATASET.")] = None,
) -> None:
    """Choose parameters on base classes alone and write them as a file for `nocl run --preset`; can be continued."""
    recipe: dict[str, JSON] = {} if epochs is None else {"recipe": {"epochs": epochs}}
    job = Job(
        method, over(parse_settings(settings or []), recipe), None, dataset, data_options(dataset, data),
        None if root is None else str(root), partition, seed, device=device,
    )  # fmt: skip
    folder = out or Path("runs/tune") / f"{method.replace(':', '.')}-{dataset}"
    with shown_progress():
        path = choose(job, spaces_of(method, space or []), folder, Tuning(trials, metric))
    found = json.loads(path.read_text("utf-8"))
    for trial in found["trials"]:
        value = "failed" if trial["value"] is None else f"{100 * trial['value']:.2f}"
        typer.echo(f"{trial['number']:4} {value:>7} {json.dumps(trial['params'])}")
    typer.echo(f"chosen: {json.dumps(found['params'])}, {metric} {100 * found['value']:.2f} on held-out base images")
    typer.echo(f"use it: nocl run {method} --preset {path}")
