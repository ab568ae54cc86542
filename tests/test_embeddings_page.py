"""The examples on the page about embeddings run as they stand."""

import importlib
import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "embeddings.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


def test_there_are_two_examples() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("block", BLOCKS, ids=["sklearn", "river"])
def test_the_example_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    if "StreamingClassifier" in block:
        assert said.startswith("['cat' 'dog' 'fox']\n['dog' 'dog' 'dog' 'dog' 'dog']")
    else:
        assert float(re.search(r"Accuracy: ([\d.]+)%", said)[1]) > 70  # type: ignore[index]


def test_the_table_is_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarks = PAGE.parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    table = importlib.import_module("embeddings").table
    rows = json.loads((benchmarks / "results" / "embeddings-cifar100.json").read_text("utf-8"))["rows"]
    assert table(rows) in PAGE.read_text("utf-8")
