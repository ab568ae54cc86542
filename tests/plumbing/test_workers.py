"""Processes that die: the error says why, as far as the exit code tells."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nocl.plumbing.workers import Say, Work, WorkFailedError, in_processes

SCRIPT = """
from nocl.plumbing.workers import in_processes

def prepare(settings):
    return lambda piece, say: piece

print(list(in_processes([1], prepare, None, workers=1, tries=1)))
"""


def dying(code: int) -> Work:
    """In the new process: end it by a signal if negative, else with the exit code."""

    def work(piece: Any, say: Say) -> None:
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)

    return work


@pytest.mark.parametrize(("code", "memory"), [(-9, True), (137, True), (-11, False), (1, False)])
def test_only_a_killed_process_is_said_to_lack_memory(code: int, memory: bool) -> None:
    with pytest.raises(WorkFailedError, match="the process of part 1 died 1 times") as found:
        list(in_processes([None], dying, code, workers=1, tries=1))
    assert ("out of memory?" in str(found.value)) == memory
    assert ("its own message is above" in str(found.value)) != memory


def test_a_script_without_a_guard_is_told_what_it_needs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert 'needs `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
    assert "out of memory" not in done.stderr


def test_the_page_on_grids_shows_the_guard() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text("utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    assert 'if __name__ == "__main__":' in block
