"""Makes one site of the repository's pages: a hook of MkDocs, used by ``make docs``.

MkDocs builds what lies in ``docs/``. Our pages also link to README, CONTRIBUTING and result files outside it. This hook
adds every file of the repository that a page links to, and turns the links so that they work both in the repository and
on the site. README is the start page.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "REPRODUCTION.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def site_path(path: str) -> str:
    """Where a file of the repository stands on the site.

    >>> site_path("docs/methods/rda.md"), site_path("README.md"), site_path("benchmarks/results/flip.json")
    ('methods/rda.md', 'index.md', 'benchmarks/results/flip.json')
    """
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def repository_path(path: str) -> str:
    """The file of the repository that stands there on the site."""
    if path == "index.md":
        return "README.md"
    return f"docs/{path}" if (ROOT / "docs" / path).exists() else path


def targets(page: str) -> Iterator[str]:
    """The files of the repository that a page links to, by their path in it."""
    for match in LINK.finditer((ROOT / page).read_text("utf-8")):
        if "://" not in match[2] and not match[2].startswith("mailto:"):
            yield os.path.normpath(PurePosixPath(page).parent / match[2])


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files outside ``docs/`` that can be reached by links."""
    waiting = [*OUTSIDE, *(repository_path(file.src_uri) for file in files.documentation_pages())]
    met = set(waiting)
    while waiting:
        page = waiting.pop()
        if not (ROOT / page).is_relative_to(ROOT / "docs"):
            files.append(File.generated(config, site_path(page), abs_src_path=str(ROOT / page)))
        for target in targets(page) if page.endswith(".md") else ():
            if target not in met and (ROOT / target).is_file():
                met.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that are right in the repository into links that are right on the site."""
    here = repository_path(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(here).parent / match[2])
        if "://" in match[2] or not (ROOT / target).is_file():
            return match[0]
        link = os.path.relpath(site_path(target), PurePosixPath(page.file.src_uri).parent)
        return f"{match[1]}{link}{match[3]}"

    return LINK.sub(turned, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show the roles of docstrings (``:class:`~nocl.learner.Learner```) by their last name."""
    return re.sub(r":\w+:<code>~?(?:[\w.]*\.)?(\w+)</code>", r"<code>\1</code>", html)
