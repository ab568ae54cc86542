"""``nocl data``: what it prints, and that errors go where errors go."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nocl.cli import main
from nocl.cli.data import data_app
from nocl.data import DATASETS, load
from tests.support.data_layouts import write_cifar100, write_folder


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NOCL_DATA", str(tmp_path / "data"))


def run(*words: str) -> str:
    result = CliRunner().invoke(data_app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_names_and_describes_every_set() -> None:
    output = run("list")
    for name in DATASETS:
        assert name in output
    assert "Krizhevsky" in output


def test_check_counts_what_was_written(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "data", n_classes=3)
    found = json.loads(run("check", "cifar100", "--json"))
    dataset = load("cifar100", root=tmp_path / "data")
    assert found["train"]["images"] == 6
    assert found["train"]["per_class"] == [2, 2, 2]
    assert found["test"]["shape"] == [3, 32, 32]
    assert found["content"] == dataset.fingerprint
    pixels = dataset.train.images / 255
    assert found["train"]["mean"] == pytest.approx(pixels.mean((0, 2, 3)), abs=1e-5)
    assert found["train"]["std"] == pytest.approx(pixels.std((0, 2, 3)), abs=1e-5)
    text = run("check", "cifar100")
    assert "cifar100: 3 classes" in text
    assert f"content {dataset.fingerprint}" in text
    assert "class 2" in text


def test_check_passes_options_on(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", {"a": 4, "b": 4})
    (tmp_path / "set" / "a" / "bad.jpg").write_bytes(b"")
    words = (
        "--root",
        str(tmp_path / "set"),
        "--size",
        "16",
        "--skip-bad",
        "--data",
        "test_fraction=0.5",
        "--data",
        "fit=squash",
    )
    found = json.loads(run("check", "folder", *words, "--json"))
    assert found["options"] == {"size": 16, "fit": "squash", "skip_bad": True, "test_fraction": 0.5, "seed": 0}
    assert found["test"]["per_class"] == [2, 2]
    assert found["train"]["shape"] == [3, 16, 16]


def test_get_says_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "data")
    assert run("get", "cifar100") == f"cifar100 is already in {tmp_path / 'data'}\n"
    assert run("get", "cifar100", "--root", str(tmp_path / "data")).startswith("cifar100 is already")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "cifar100"), "has no train, test, meta"),
        (("check", "cifr100"), "did you mean 'cifar100'?"),
        (("check", "folder", "--data", "sise=3"), "did you mean 'size'?"),
        (("check", "folder", "--data", "size"), "write key=value"),
        (("get", "core50"), "core50_128x128.zip"),
    ],
)
def test_errors_are_one_line_on_stderr_and_a_nonzero_exit(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nocl", "data", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    assert stopped.value.code == 1
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
