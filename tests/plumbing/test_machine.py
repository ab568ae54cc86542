"""Where a run happens is told truthfully, and never fails."""

import subprocess
from pathlib import Path

import pytest

from nocl.plumbing import machine
from nocl.plumbing.machine import environment, peak_memory


def test_commit_is_that_of_the_checkout() -> None:
    folder = Path(machine.__file__).parent
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    tracked = subprocess.run(
        ["git", "-C", folder, "ls-files", "--error-unmatch", machine.__file__], capture_output=True
    )
    expected = done.stdout.strip() if done.returncode == 0 and tracked.returncode == 0 else None
    assert environment()["commit"] == expected


@pytest.mark.parametrize("variable", ["GIT_DIR", "PATH"])
def test_environment_never_fails_for_want_of_git(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = environment()["commit"]
    monkeypatch.setenv(variable, "/nowhere")
    assert environment()["commit"] == (commit if variable == "GIT_DIR" else None)


def test_no_commit_when_the_package_only_lies_inside_some_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)

    copied = tmp_path / "site-packages" / "plumbing" / "machine.py"
    copied.parent.mkdir(parents=True)
    copied.write_text("")
    monkeypatch.setattr(machine, "__file__", str(copied))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "Start")
    assert (environment()["commit"], environment()["dirty"]) == (None, None)
    git("add", ".")
    git("commit", "-q", "-m", "Add")
    assert environment()["commit"] is not None
    assert environment()["dirty"] is False
    copied.write_text("changed")
    assert environment()["dirty"] is True


def test_peak_memory_is_plausible() -> None:
    peak = peak_memory()
    assert peak is None or 10_000_000 < peak < 2**40
