"""The command line as a user meets it: exit codes, messages on stderr, files left behind."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nocl.checks import LEARNER_CHECKS
from nocl.cli import main
from nocl.experiments.job import parse_settings
from nocl.results import RunResult

QUICK = [
    "--data",
    "train_per_class=3",
    "--data",
    "test_per_class=2",
    "--epochs",
    "1",
    "--set",
    "backbone=tiny_resnet18",
]


Nocl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def nocl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Nocl]:
    """The console script, called within this process: a new one takes seconds to import torch."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["nocl", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code or 0, said.out, said.err)  # type: ignore[arg-type]

    before = signal.getsignal(signal.SIGTERM)  # the script sets it, and adds to sys.path
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "nocl run ncm"),
        (["run", "nmc"], "did you mean 'ncm'"),
        (["run", "ncm", "--dataset", "glifs"], "glyphs"),
        (["run", "ncm", "--set", "powr=1"], "did you mean 'power'"),
        (["run", "ncm", "--set", "power"], "key=value"),
        (["run", "ncm", "--schedule", "onecycl"], "did you mean 'onecycle'"),
        (["run", "--resume", "no/such/folder"], "holds no run"),
        (["report", "no/such/folder"], "no result.json"),
        (["list", "method"], "did you mean 'methods'"),
        (["check", "no_such_module:Thing"], "no_such_module"),
        (["check", "json:loads"], "json:loads is not a method: it must be a class derived from nocl.Learner"),
        (["check", "torch:Tensor"], "torch:Tensor is not a method"),
        (["check", "ncm", "--set", "power=9"], "power must be from 0 to 2, not 9"),
    ],
)
def test_mistakes_get_one_helpful_line_and_a_failing_exit(nocl: Nocl, arguments: list[str], said: str) -> None:
    done = nocl(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "FAILS" not in done.stdout


def test_run_prints_a_table_and_leaves_a_report(nocl: Nocl, tmp_path: Path) -> None:
    done = nocl("run", "ncm", *QUICK, "--schedule", "onecycle", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for word in ("session", "Acc", "base", "novel", "HM", "report.html"):
        assert word in done.stdout
    (folder,) = tmp_path.glob("ncm*")
    assert {"run.json", "result.json", "report.html", "table.md"} <= {path.name for path in folder.iterdir()}
    recipe = RunResult.load(folder / "result.json").base["recipe"]
    assert isinstance(recipe, dict)
    assert (recipe["epochs"], recipe["schedule"]) == (1, "onecycle")
    again = nocl("report", str(tmp_path), "--out", str(tmp_path / "all"))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "all" / "table.tex").exists()


def test_lists(nocl: Nocl) -> None:
    assert "ncm" in nocl("list", "methods").stdout
    assert nocl("list", "partitions").stdout.split() == ["60+4x10", "40+6x10", "80+2x10", "60+2x20"]
    assert "glyphs" in nocl("list", "datasets").stdout
    assert "efficientnet_lite0" in nocl("list", "backbones").stdout


def test_settings_nest_by_dots_and_keep_text() -> None:
    assert parse_settings(["a.b=1", "a.c=true", "d=x y"]) == {"a": {"b": 1, "c": True}, "d": "x y"}
    with pytest.raises(ValueError, match="already has a plain value"):
        parse_settings(["a=1", "a.b=2"])


BROKEN = """
from nocl.methods.ncm import NCM

class Forgetful(NCM):
    \"\"\"Answers with fewer columns than classes.\"\"\"
    def score(self, z):
        return super().score(z)[:, :1]
"""


def test_check_finds_the_module_beside_it_and_lists_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_module.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    script = "import sys; sys.argv[1:] = ['check', 'my_module:Forgetful']; sys.path.remove('')"  # as a console script
    script += "; import nocl.cli; nocl.cli.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    for name in LEARNER_CHECKS:
        assert f" {name}: " in done.stdout
    assert "FAILS it_learns" in done.stdout
    assert "ok    parameters_round_trip" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "--verbose" in done.stderr
