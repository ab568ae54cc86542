"""The command line: one file for each group of commands, which parse arguments, call the library and print.

A command's module is imported when the command is called, so that ``nocl --help`` does not wait for PyTorch.
"""

import importlib
import io
import logging
import os
import signal
import sys
from types import FrameType
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from nocl.plumbing.version import __version__


class Entry(NamedTuple):
    """The module of ``nocl.cli`` that holds a command, and the first line of the command's help."""

    module: str
    help: str


INTERRUPTED = 130  # exit code
IMAGES, RESEARCH = "Your own images", "Research"
COMMANDS: dict[str, dict[str, Entry]] = {
    IMAGES: {
        "new": Entry("practice", "Make an empty model, ready to learn."),
        "fit": Entry("practice", "Start a model from base images: DIR/<class>/<image>."),
        "learn": Entry("practice", "Learn the images of a folder, each once; --watch continues with new images."),
        "forget": Entry("practice", "Remove a class from a model."),
        "predict": Entry("answers", "Print the most probable classes of image files."),
        "evaluate": Entry("answers", "Measure the accuracy on a folder of labelled images, class by class."),
        "serve": Entry("answers", "Serve a model over HTTP, with a web page at /."),
        "inspect": Entry("answers", "Show what a model file contains."),
        "merge": Entry("practice", "Merge two models that learned different images on the same network."),
        "embed": Entry("embed", "Write the features of a folder of images as one .npz file."),
        "export": Entry("answers", "Write the model as an ONNX file."),
    },
    RESEARCH: {
        "list": Entry("names", "List the methods, data sets, networks, partitions or streams that have a name."),
        "run": Entry("run", "Run one method through the whole protocol and report it."),
        "compare": Entry("compare", "Compare methods on identical features of one frozen network."),
        "tune": Entry("tune", "Choose a method's parameters on base classes alone."),
        "reproduce": Entry("reproduce", "Run a table or figure of the paper and compare with the paper's numbers."),
        "report": Entry("run", "Compare runs: Markdown, CSV, LaTeX and one HTML page."),
        "check": Entry("run", "Check that a method keeps the contract."),
        "data": Entry("data", "List, download and check data sets."),
    },
}


class LazyGroup(TyperGroup):
    """Shows the help texts of COMMANDS; imports a command's module when the command is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        for entries in COMMANDS.values():
            if name in entries:
                command = command_of(name, entries[name].module)
        return name, command, rest


def command_of(name: str, module: str) -> Any:
    """The command ``name`` of ``nocl.cli.<module>``, ready to be called."""
    found: Any = typer.main.get_command(getattr(importlib.import_module(f"nocl.cli.{module}"), f"{module}_app"))
    return getattr(found, "commands", {}).get(name, found)


app = typer.Typer(
    name="nocl",
    cls=LazyGroup,
    help="Learn new classes from a stream, in one pass, with no stored examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for panel, entries in COMMANDS.items():
    for name, entry in entries.items():
        app.command(name, help=entry.help, rich_help_panel=panel)(lambda: None)


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Print more about what happens."),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line. An error that a user can correct is one line on stderr; NOCL_DEBUG=1 shows more."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    sys.path.append(
        os.getcwd()
    )  # for my_module:MyMethod in the current folder; last, so that installed modules come first
    try:
        if sys.argv[1:] in (
            ["list"],
            ["list", "methods"],
        ):  # without typer, which imports pydantic and takes twice as long
            importlib.import_module("nocl.cli.names").print_methods()
        else:
            app()
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer has caught the interruption and says nothing
            _fail("interrupted", INTERRUPTED)
        raise
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, ImportError) as error:
        if os.environ.get("NOCL_DEBUG"):
            raise
        _fail(f"error: {error}", 1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


__all__ = ["app", "main"]
