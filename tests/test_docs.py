"""The pages: every link and anchor leads somewhere, no page is orphaned, the reference names what exists."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nocl.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """The text without blocks of code, where a bracket is no link and a hash no heading."""
    return re.sub(r"^( *)(```|~~~).*?^\1\2", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names by which headings can be linked, made as the site and code hosts make them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", prose(page), flags=re.MULTILINE)
    plain = [re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else Path(os.path.normpath(page.parent / path))
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def pages_in(nav: Any) -> Iterator[str]:
    for item in nav:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        yield from [value] if isinstance(value, str) else pages_in(value)


def test_no_page_is_orphaned() -> None:
    yaml = pytest.importorskip("yaml", reason="the extra docs is not installed: pip install -e '.[docs]'")
    listed = set(pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    docs = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    outside = {page.name for page in ROOT.glob("*.md")} - {"README.md"} | {"index.md"}
    assert listed == docs | outside


def test_every_method_has_a_page_and_a_reference() -> None:
    reference = (ROOT / "docs" / "api" / "methods.md").read_text("utf-8")
    for name, cls in METHODS.items():
        assert (ROOT / "docs" / "methods" / f"{name}.md").exists()
        assert f"::: {cls.__module__}.{cls.__name__}\n" in reference


def test_the_reference_names_what_exists() -> None:
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), flags=re.MULTILINE):
            module, _, name = path.rpartition(".")
            found = getattr(importlib.import_module(module), name, None) or importlib.import_module(path)
            assert found.__doc__, f"{path} has no docstring"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "tutorial-own-images/" in start  # README's links were turned
    assert not re.search(r"""(?:src|href)=["']?https?://[^"' >]*\.(?:css|js|woff2?)""", start)  # nothing is fetched
    reference = (tmp_path / "site" / "api" / "index.html").read_text("utf-8")
    assert "partial_fit" in reference
