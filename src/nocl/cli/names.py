"""``nocl list``: the names that commands accept.

Methods are read from their source files, because importing them needs PyTorch.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from nocl.plumbing.registry import UnknownNameError, unknown

names_app = typer.Typer(add_completion=False)


@names_app.command(name="list")
def list_names(
    what: Annotated[str, typer.Argument(help="methods, datasets, backbones, partitions or streams.")] = "methods",
) -> None:
    """List the methods, data sets, networks, partitions or streams that have a name."""
    if what == "methods":
        print_methods()
    elif what == "datasets":
        from nocl.data import DATASETS

        print("\n".join(DATASETS))
    elif what == "backbones":
        from nocl.app import weights
        from nocl.nets import valid_backbones

        print("\n".join(valid_backbones(tuple(weights.PACKAGED)).split("; ")))
    elif what == "partitions":
        from nocl.streams import PARTITIONS

        print("\n".join(PARTITIONS))
    elif what == "streams":
        from nocl.arrivals import STREAMS

        for plan in STREAMS.values():
            print(f"{plan().describe():64} {(plan.__doc__ or '').partition(chr(10))[0]}")
    else:
        raise UnknownNameError(unknown(what, ("methods", "datasets", "backbones", "partitions", "streams"), "list"))


def print_methods() -> None:
    """One line for each method: its name, whether it stores examples, and what it is."""
    for method in methods():
        tag = "stores exemplars" if method.stores_exemplars else "no exemplars"
        print(f"{method.name:12} {tag:17} {method.summary}")


class Method(NamedTuple):
    """What ``nocl list methods`` prints of a method."""

    name: str
    summary: str
    stores_exemplars: bool


def methods() -> Iterator[Method]:
    """The entries of ``nocl.methods.METHODS``, without importing them."""
    package = find_spec("nocl")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent
    listing = _parse(source / "methods" / "__init__.py")
    (table,) = (node.value for node in listing.body if isinstance(node, ast.AnnAssign) and _name(node) == "METHODS")
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Name)
        defined = list(_lineage(source, listing, value.id))
        summary = (ast.get_docstring(defined[0]) or "").partition("\n")[0]
        yield Method(str(key.value), summary, _stores_exemplars(defined))


def _stores_exemplars(lineage: list[ast.ClassDef]) -> bool:
    """The value of the attribute in the first class that sets it."""
    for line in (line for node in lineage for line in node.body):
        if isinstance(line, ast.Assign | ast.AnnAssign) and _name(line) == "stores_exemplars":
            return isinstance(line.value, ast.Constant) and line.value.value is True
    return False


def _lineage(source: Path, module: ast.Module, name: str) -> Iterator[ast.ClassDef]:
    """A class that a module defines or imports from this package, then its base classes in this package."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from _lineage(source, module, base.id)
        elif isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            package, *inside = (node.module or "").split(".")
            path = source.joinpath(*inside)
            if package == "nocl":
                yield from _lineage(
                    source, _parse(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")), name
                )


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _name(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""
