"""What a test run left out, and how to have it, in one line at its end.

Skipped tests and tests that their mark deselects are counted by reason. NOCL_LEFT_OUT names a file that carries the
count over several runs of pytest (``make test`` has two): what a later run has run is no longer left out.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest

from nocl.plumbing import workers

pytest_plugins = ("tests.support.given_network",)  # fixtures: a network file and a run on its features
MARKS = {
    "slow": "they take minutes each: pytest -m slow",
    "ray": "they start a local Ray: pytest -m ray tests/experiments/test_ray.py",
}
os.environ.setdefault(
    "NOCL_ENGINE", "torch"
)  # exporting a network takes seconds; tests/nets/test_engine.py asks for it
# Threads of a process that wait for each other must not keep a core busy that another process needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What the processes of the tests import. One fork server serves them all, whichever test starts it: without this, each
# process imports torch or its parts again.
PRELOADED = (
    "nocl.checks", "nocl.app.sharded", "nocl.experiments.grid.local", "torch._dynamo", "kornia.augmentation",
    "matplotlib.pyplot",
)  # fmt: skip
LeftOut = dict[str, str]  # a test's id and why it did not run
KEY = pytest.StashKey[LeftOut]()


@pytest.fixture(scope="session", autouse=True)
def _one_fork_server() -> Iterator[None]:
    context = workers._context

    def with_all(*preload: str) -> BaseContext:
        return context(*preload, *PRELOADED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_context", with_all)
        yield


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        for mark, reason in MARKS.items():
            if item.get_closest_marker(mark):
                item.config.stash.setdefault(KEY, {})[item.nodeid] = reason


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # there in a worker of pytest-xdist
    if output is not None:
        output["left_out"] = session.config.stash.get(KEY, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from a worker of pytest-xdist what it deselected."""
    node.config.stash.setdefault(KEY, {}).update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left = config.stash.setdefault(KEY, {})
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        left[report.nodeid] = reason.removeprefix("Skipped: ")
    carried = os.environ.get("NOCL_LEFT_OUT")
    if carried:
        path = Path(carried)
        before: LeftOut = json.loads(path.read_text()) if path.exists() else {}
        ran = {report.nodeid for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])}
        left.update({test: reason for test, reason in before.items() if test not in ran})
        path.write_text(json.dumps(left))


def pytest_unconfigure(config: pytest.Config) -> None:
    """After everything else that pytest prints."""
    reporter, left = config.pluginmanager.get_plugin("terminalreporter"), config.stash.get(KEY, {})
    if reporter is not None and left and not hasattr(config, "workeroutput"):
        reporter.write_line(sentence(left), yellow=True, bold=True)


def sentence(left: LeftOut) -> str:
    """The line itself.

    >>> sentence({"a": "no chromium", "b": "no chromium", "c": "slow: pytest -m slow"})
    'LEFT OUT: 2 tests, no chromium; 1 test, slow: pytest -m slow'
    """
    counts = Counter(left.values()).most_common()
    return "LEFT OUT: " + "; ".join(f"{count} test{'s' * (count > 1)}, {reason}" for reason, count in counts)
