"""Help and lists come without PyTorch, and say of every command and method what is true."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import nocl
from nocl.cli import COMMANDS, command_of
from nocl.cli.names import methods
from nocl.methods import METHODS

WITHOUT_TORCH = """
import sys
from typer.testing import CliRunner
from nocl.cli import app
done = CliRunner().invoke(app, sys.argv[1:])
print(done.output)
assert done.exit_code == 0, done.output
heavy = {"torch", "numpy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("words", [("--help",), ("list", "methods"), ("list", "--help"), ("--version",)])
def test_help_and_lists_import_nothing_heavy(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("words", [("--help",), ("list", "methods")])
def test_the_first_answers_do_not_wait_for_pydantic_either(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nocl", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "rda" in done.stdout or "serve" in done.stdout
    assert "typer" in done.stderr  # the list of imports is there
    assert not {"pydantic", "torch", "numpy"} & {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


def test_every_command_of_the_table_is_there_and_explains_itself() -> None:
    for entries in COMMANDS.values():
        for name, entry in entries.items():
            command = command_of(name, entry.module)
            assert command.name in (name, f"{entry.module}_app", "")  # a group, such as data, has a name of its own
            assert entry.help.endswith(".")
            assert command.help


def test_every_command_of_a_module_is_in_the_table() -> None:
    listed = {(entry.module, name) for entries in COMMANDS.values() for name, entry in entries.items()}
    for module in {module for module, _ in listed} - {"data"}:
        app = getattr(importlib.import_module(f"nocl.cli.{module}"), f"{module}_app")
        for command in app.registered_commands:
            assert (module, command.name or command.callback.__name__) in listed


def test_methods_read_from_source_are_the_methods() -> None:
    found = [(name, cls.stores_exemplars, (cls.__doc__ or "").strip().splitlines()[0]) for name, cls in METHODS.items()]
    assert [(method.name, method.stores_exemplars, method.summary) for method in methods()] == found


def test_every_public_name_is_there() -> None:
    for name in nocl.__all__:
        assert getattr(nocl, name) is not None
    assert set(nocl.__all__) <= set(dir(nocl))
    with pytest.raises(AttributeError, match="no attribute 'classfier'"):
        nocl.classfier  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("first", ["from nocl.run import run as other", "import nocl.run", "pass"])
def test_run_is_the_function_whatever_was_imported_before(first: str) -> None:
    code = f"{first}\nfrom nocl import run\nimport inspect\nprint(callable(run), *inspect.signature(run).parameters)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("True learner stream folder")


def test_run_is_also_the_module() -> None:
    assert isinstance(importlib.import_module("nocl.run"), ModuleType)
    assert nocl.run.RESULT == "result.json"  # type: ignore[attr-defined]
