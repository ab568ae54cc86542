"""The scaling benchmark measures what it says: state is what the specification allows, and prediction stays bounded."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("scaling")


def test_state_grows_as_the_formula_says_and_a_wrong_formula_is_noticed(
    scaling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = {
        name: by for name, by in scaling.BYTES.items() if name in ("ncm", "slda", "fecam diagonal", "fecam shared")
    }
    monkeypatch.setattr(scaling, "BYTES", light)
    rows = scaling.rows_of([20, 40], [160], 10**9)
    for name in light:
        small, large = (row["statistics_bytes"] for row in rows if row["method"] == name)
        assert light[name](40, 160) - light[name](20, 160) == large - small - 20 * 8  # 8 bytes for each label
    monkeypatch.setattr(scaling, "BYTES", {"ncm": lambda k, d: k * d * d})
    with pytest.raises(AssertionError, match="ncm keeps"):
        scaling.rows_of([20], [160], 10**9)


def test_state_beyond_the_memory_is_stated_but_not_built(scaling: ModuleType) -> None:
    rows = scaling.rows_of([10_000], [640], 1000)
    assert all("learn_seconds" not in row for row in rows)
    full = next(row for row in rows if row["method"] == "fecam full")
    assert full["formula_bytes"] == 10_000 * (8 * 640 * 640 + 16 * 640 + 16)
    assert "not run" in scaling.table(rows)


def test_rows_measured_again_replace_their_own_and_others_stay(scaling: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    old = [{"method": name, "d": 160, "classes": 100, "formula_bytes": 1} for name in ("slda", "ncm")]
    path.write_text(json.dumps({"environment": {"commit": "old"}, "rows": old}))
    fresh = [{"method": "ncm", "d": d, "classes": 100, "formula_bytes": 2} for d in (640, 160)]
    rows = scaling.joined(path, fresh)
    assert [(row["method"], row["d"], row["formula_bytes"]) for row in rows] == [
        ("ncm", 160, 2), ("ncm", 640, 2), ("slda", 160, 1)
    ]  # fmt: skip
    assert rows[2]["commit"] == "old"
    assert rows[0]["commit"] != "old"
