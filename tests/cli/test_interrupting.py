"""Ctrl-C while the processes of ``--workers`` start: one line, and the exit code of an interruption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nocl.cli import main

WORK = """
import pathlib, sys, time
if len(sys.argv) == 1:  # in the fork server, which is interrupted while it imports this
    pathlib.Path("started").touch()
    time.sleep(2)

def prepare(settings):
    return lambda piece, say: piece
"""
START = """
import signal, sys
import work
from nocl.plumbing.workers import in_processes
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    try:
        print(list(in_processes([1], work.prepare, bytes(1 << 20), workers=1)))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.skipif(os.name != "posix", reason="fork servers and process groups are of POSIX")
def test_an_interruption_while_processes_start_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "start.py").write_text(START)
    command = [sys.executable, "start.py", "first process"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        limit = time.monotonic() + 30
        while not (tmp_path / "started").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=30)
    assert (process.returncode, said, errors) == (130, "", "")


def test_an_interrupted_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nocl.cli.practice.load_model", stopped)
    monkeypatch.setattr("sys.argv", ["nocl", "merge", "a.nocl", "b.nocl", "-o", "c.nocl"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
