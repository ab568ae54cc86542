"""``nocl data``: list data sets, download one, check one."""

import inspect
import json
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from nocl.cli.options import Data, Root
from nocl.cli.show import shown_progress
from nocl.data import DATASETS, about, default_root, load, loader_of
from nocl.data.download import get as fetch
from nocl.data.summary import summary
from nocl.experiments.job import parse_settings
from nocl.plumbing.types import JSON

data_app = typer.Typer(help="List, download and check data sets.", no_args_is_help=True, add_completion=False)


@data_app.command("list")
def list_() -> None:
    """List the data sets with a description."""
    table = Table("name", "what it is", box=None, pad_edge=False)
    for name in DATASETS:
        table.add_row(name, about(name))
    Console().print(table)
    typer.echo(f"expected in {default_root()} (--root or NOCL_DATA)")


@data_app.command()
def get(name: Annotated[str, typer.Argument(help="A name from `nocl data list`.")], root: Root = None) -> None:
    """Download a data set, check and unpack it; an interrupted download is continued."""
    place = root or default_root()
    with shown_progress():
        written = fetch(name, place)
    typer.echo("\n".join(f"wrote {path}" for path in written) or f"{name} is already in {place}")


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="A name from `nocl data list`, or your own as module:function.")],
    root: Root = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels, for sets that are resized.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that are not images.")] = False,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Load a data set and print its counts, shapes, images per class and content hash."""
    options = data_options(name, data)
    options |= {"size": size} if size is not None else {}
    options |= {"skip_bad": True} if skip_bad else {}
    with shown_progress():
        found = summary(load(name, root=root, **options))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{found['name']}: {found['classes']} classes, options {json.dumps(found['options'])}")
    for split in ("train", "test"):
        typer.echo(_line(split, cast("dict[str, JSON]", found[split])))
    _per_class(found)
    typer.echo(f"content {found['content']}")


def data_options(dataset: str, pairs: list[str] | None) -> dict[str, JSON]:
    """The options of a data set from key=value; text where its default is a number is refused, and the reverse."""
    options, loader = parse_settings(pairs or []), loader_of(dataset)
    parameters = inspect.signature(getattr(loader, "function", loader)).parameters
    for name, value in options.items():
        usual = parameters[name].default if name in parameters else None
        kinds = {bool: (bool,), int: (int,), float: (int, float)}.get(type(usual))
        if kinds is not None and (not isinstance(value, kinds) or isinstance(value, bool) != isinstance(usual, bool)):
            words = {bool: "true or false", int: "a whole number", float: "a number"}[type(usual)]
            raise ValueError(f"--data {name}={value}: {name} must be {words}, such as {str(usual).lower()}")
        is_text = name in parameters and parameters[name].annotation in (str, str | None)
        if is_text and not isinstance(value, str) and not (value is None and usual is None):
            raise ValueError(f"--data {name}={value}: {name} must be text; write --data '{name}=\"{value}\"'")
    return options


def _line(name: str, split: dict[str, JSON]) -> str:
    shape = "x".join(str(side) for side in cast("list[int]", split["shape"]))
    if "vectors" in split:
        return f"{name}: {split['vectors']} vectors of {shape} values"
    return (
        f"{name}: {split['images']} images {shape}, mean {split['mean']}, std {split['std']}, "
        f"content {split['content']}"
    )


def _per_class(found: dict[str, JSON]) -> None:
    train, test = (cast("dict[str, list[int]]", found[split])["per_class"] for split in ("train", "test"))
    table = Table("label", "class", "train", "test", box=None, pad_edge=False)
    for label, name in enumerate(cast("list[str]", found["class_names"])):
        table.add_row(str(label), name, str(train[label]), str(test[label]))
    Console().print(table)
