"""The command line, called within the process."""

from typer.testing import CliRunner

from nocl.cli import app


def nocl(*arguments: object) -> str:
    """What the command prints; it must succeed, and its errors are raised."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
