"""The command line. One file a group of commands; they parse, call the library and print, nothing more."""

import logging
import os
import signal
import sys
from types import FrameType

import typer

from nocl.cli.compare import compare_app
from nocl.cli.data import data_app
from nocl.cli.practice import practice_app
from nocl.cli.reproduce import reproduce_app
from nocl.cli.run import run_app
from nocl.cli.tune import tune_app
from nocl.plumbing.version import __version__

app = typer.Typer(
    name="nocl",
    help="Learn new classes from a stream, in one pass, with no stored examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(run_app)
app.add_typer(compare_app)
app.add_typer(practice_app)
app.add_typer(reproduce_app)
app.add_typer(tune_app)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say more about what happens."),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line. Errors that a user can mend are one line on stderr; NOCL_DEBUG=1 shows where they arose."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except KeyboardInterrupt:
        _fail("interrupted", 130)
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
