"""A result survives its JSON form unchanged, and a file that is not one is refused with the field's name."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nocl import results
from nocl.results import FORMAT, InvalidResultError, RunResult, environment


def counts(*values: int) -> dict[str, int]:
    return dict(zip(results.CONFUSION, values))


def small(**changes: Any) -> RunResult:
    """Three base classes, then two sessions of one class; ten test images per class."""
    values: dict[str, Any] = {
        "method": "ncm",
        "params": {"seed": 0, "cosine": True, "stages": [3, 4]},
        "tags": {"stores_exemplars": False, "uses_boundaries": False},
        "stream": {"dataset": "glyphs", "partition": "60+2x20", "order_seed": 0},
        "seed": 0,
        "session_classes": ((4, 0, 2), (1,), (3,)),
        "accuracy": ((0.8, None, None), (0.7, 0.6, None), (0.5, 0.4, 0.9)),
        "class_accuracy": (
            (1.0, 0.8, 0.6, None, None),
            (0.9, 0.7, 0.5, 0.6, None),
            (0.5, 0.5, 0.5, 0.4, 0.9),
        ),
        "confusion": (counts(24, 6, 0, 0, 0, 0), counts(21, 6, 3, 6, 4, 0), counts(15, 9, 6, 13, 5, 2)),
        "seconds": (12.5, 0.25, 0.5),
        "test_seconds": (0.1, 0.1, 0.2),
        "peak_memory": 300_000_000,
        "state_bytes": {"network": 4_372_560, "statistics": 6400, "exemplars": 0},
        "base": {"recipe": "ce", "epochs": 3},
        "environment": {"torch": "2", "commit": None},
        "log": {},
        "finished": True,
    }
    return RunResult(**(values | changes))


def test_scores_by_hand() -> None:
    result = small()
    assert result.acc == pytest.approx((3 * 0.5 + 0.4 + 0.9) / 5)
    assert result.base_acc == 0.5
    assert result.novel_acc == pytest.approx(0.65)
    assert result.hm == pytest.approx(2 * 0.5 * 0.65 / 1.15)
    assert [point.acc for point in result.curve] == pytest.approx([0.8, 0.675, 0.56])
    assert result.average == pytest.approx((0.8 + 0.675 + 0.56) / 3)
    assert result.forgetting == pytest.approx((3 * 0.3 + 0.2) / 4)


def test_json_round_trip_changes_nothing(tmp_path: Path) -> None:
    result = small(log={"lower_loss": [0.5, 0.25]})
    result.save(tmp_path / "deep" / "result.json")
    again = RunResult.load(tmp_path / "deep" / "result.json")
    assert again == result
    assert again.to_json() == result.to_json() == json.loads(json.dumps(result.to_json()))


def test_every_field_is_written_with_its_version() -> None:
    assert {*small(scoring=2).to_json(), "anytime"} == {field.name for field in dataclasses.fields(RunResult)}
    assert small().to_json()["format"] == FORMAT


def test_result_shares_nothing_with_what_it_was_made_of() -> None:
    params: dict[str, Any] = {"nested": [1, 2]}
    result = small(params=params)
    params["nested"].append(3)
    document: Any = result.to_json()
    document["params"]["nested"].append(4)
    assert result.params == {"nested": [1, 2]}


def test_result_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().seed = 1  # type: ignore[misc]


def test_unfinished_run_has_fewer_rows_than_sessions() -> None:
    whole = small()
    part = {name: getattr(whole, name)[:1] for name in ("accuracy", "class_accuracy", "confusion", "seconds")}
    result = small(**part, test_seconds=(0.1,), finished=False)
    assert (result.acc, result.novel_acc, result.hm, result.forgetting) == (
        pytest.approx(0.8),
        None,
        None,
        None,
    )
    with pytest.raises(InvalidResultError, match="finished: true, but accuracy has 1 rows for 3"):
        small(**part, test_seconds=(0.1,))


NEEDED = sorted({field.name for field in dataclasses.fields(RunResult)} - {"anytime", "scoring"})


@pytest.mark.parametrize("name", NEEDED)
def test_missing_field_is_named(name: str) -> None:
    document = small().to_json()
    del document[name]
    with pytest.raises(InvalidResultError, match=f"missing field {name}"):
        RunResult.from_json(document)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RunResult)])
def test_mistyped_field_is_named(name: str) -> None:
    document: Any = small().to_json()
    document[name] = 1.5
    with pytest.raises(InvalidResultError, match=f"^{name}"):
        RunResult.from_json(document)


def test_unknown_version_is_refused_before_anything_else() -> None:
    with pytest.raises(InvalidResultError, match=r"format: version 99 is not known.*reads version 1"):
        RunResult.from_json({"format": 99, "shape": "other"})


def test_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidResultError, match="unknown field extra"):
        RunResult.from_json({**small().to_json(), "extra": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"accuracy": ((0.8, 0.0, None), (0.7, 0.6, None), (0.5, 0.4, 0.9))},
            r"accuracy\[0\]\[1\].*not yet seen",
        ),
        ({"accuracy": ((0.8, None, None), (0.7, None, None), (0.5, 0.4, 0.9))}, r"accuracy\[1\]\[1\]"),
        (
            {"accuracy": ((0.8, None, None), (0.7, 0.6, None), (0.5, 0.4, 90.0))},
            r"accuracy\[2\]\[2\].*0 to 1",
        ),
        (
            {"accuracy": ((0.8, None, None), (0.7, 0.6, None), (0.5, 0.4, 0.8))},
            "mean of class_accuracy is 0.9",
        ),
        ({"accuracy": ((0.8,), (0.7, 0.6), (0.5, 0.4, 0.9))}, r"accuracy\[0\]: 1 columns, should be 3"),
        ({"accuracy": ()}, "accuracy: 0 rows"),
        ({"accuracy": ((float("nan"), None, None),)}, r"accuracy\[0\]\[0\].*nan"),
        ({"session_classes": ((4, 0, 2), (1,), (4,))}, "session_classes: a class appears twice"),
        ({"session_classes": ((), (), ())}, "session_classes.*at least one class"),
        ({"session_classes": ((4, 0, 2), (1,), (True,))}, r"session_classes\[2\]\[0\].*whole number"),
        ({"seconds": (1.0, 2.0)}, "seconds: 2 entries"),
        ({"seconds": (1.0, 2.0, float("inf"))}, r"seconds\[2\]"),
        ({"seconds": (1.0, 2.0, -1.0)}, r"seconds\[2\]"),
        ({"tags": {"stores_exemplars": False}}, "tags: .*uses_boundaries"),
        (
            {"tags": {"stores_exemplars": 0, "uses_boundaries": False}},
            "tags.stores_exemplars: .*true or false",
        ),
        (
            {"state_bytes": {"network": 1, "statistics": -1, "exemplars": 0}},
            "state_bytes.statistics: .*at least 0",
        ),
        ({"confusion": (counts(1, 2, 3),) * 3}, r"confusion\[0\]: .*novel_as_novel"),
        ({"params": {"rate": [1, float("nan")]}}, r"params.rate\[1\]: .*finite"),
        ({"params": {"stages": (3, 4)}}, "params.stages: .*not tuple"),
        ({"log": {1: 2}}, "log: .*text keys"),
        ({"method": ""}, "method: should be a text"),
    ],
)
def test_contradiction_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidResultError, match=message):
        small(**change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a whole JSON file"),
        ('{"method": "nc', "not a whole JSON file"),
        ('{"format": NaN}', "NaN"),
        ("[1, 2]", "JSON object, got list"),
        ('{"format": 1}', "missing field"),
    ],
)
def test_file_that_is_no_result_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InvalidResultError, match=f"r.json: .*{message}"):
        RunResult.load(tmp_path / "r.json")


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"r\.json: no such result file"):
        RunResult.load(tmp_path / "r.json")


def test_save_replaces_whole_files_only(tmp_path: Path) -> None:
    small(seed=1).save(tmp_path / "r.json")
    small(seed=2).save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json").seed == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_environment_is_json_and_fits_a_result() -> None:
    found = environment()
    assert small(environment=copy.deepcopy(found)).environment == found
    assert {"nocl", "commit", "dirty", "python", "torch", "platform", "cpu", "threads", "device"} <= set(found)
    assert found["device"] == "cpu"


ANYTIME = {
    "every": 5,
    "images": [5, 10],
    "accuracy": [0.5, 0.25],
    "class_accuracy": [[1.0, 0.8, 0.6, 0.6, None], [0.9, 0.9, 0.5, 0.6, 0.7]],
}


def test_anytime_numbers_by_hand() -> None:
    result = small(anytime=ANYTIME)
    assert result.a_auc == 0.375
    assert result.a_last == (15 + 13) / 50
    assert result.a_avg == pytest.approx(((21 + 6) / 40 + 28 / 50) / 2)
    assert result.worst_class == 0.4
    assert result.class_forgetting == pytest.approx(((1.0 - 0.5) + (0.9 - 0.5) + (0.6 - 0.5) + 0.2 + (0.7 - 0.9)) / 5)
    last = list(result.class_accuracy[-1])
    after = small(
        anytime=ANYTIME | {"class_accuracy": [ANYTIME["class_accuracy"][0], last]}
    )  # tested after the last image
    assert after.class_forgetting == pytest.approx(small().class_forgetting)
    assert small().a_auc is None
    assert small().class_forgetting == pytest.approx((0.5 + 0.3 + 0.1 + 0.2) / 4)


def test_anytime_survives_json_and_results_without_it_stay_as_they_were(tmp_path: Path) -> None:
    result = small(anytime=ANYTIME)
    result.save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json") == result
    assert "anytime" not in small().to_json()  # as before there were such tests
    assert "scoring" not in small().to_json()
    assert RunResult.from_json(small().to_json()) == small()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": [5]}, "one entry per test"),
        ({"images": [10, 5]}, "must rise"),
        ({"every": 0}, "1 or more"),
        ({"accuracy": [0.5, None]}, "needs an accuracy"),
        ({"accuracy": [0.5, 1.5]}, r"anytime.accuracy\[1\]"),
        ({"class_accuracy": [[0.5], [0.5]]}, "each of 5 classes"),
        ({"more": 1}, "exactly every"),
    ],
)
def test_anytime_that_contradicts_itself_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidResultError, match=reason):
        small(anytime={**ANYTIME, **change})


def test_sessions_may_bring_no_class_and_the_base_may_be_missing() -> None:
    result = small(
        session_classes=((), (4, 0, 2), (), (1, 3)),
        accuracy=((None,) * 4, (None, 0.8, None, None), (None, 0.7, None, None), (None, 0.5, None, 0.65)),
        class_accuracy=(
            (None,) * 5, (1.0, 0.8, 0.6, None, None), (0.9, 0.7, 0.5, None, None), (0.5, 0.5, 0.5, 0.4, 0.9)
        ),
        confusion=(counts(0, 0, 0, 0, 0, 0), *[counts(0, 0, 0, 20, 0, 10)] * 3),
        seconds=(0.0, 1.0, 1.0, 1.0),
        test_seconds=(0.0, 0.1, 0.1, 0.1),
    )  # fmt: skip
    assert result.acc == result.novel_acc == pytest.approx((3 * 0.5 + 2 * 0.65) / 5)
    assert result.base_acc is None
    assert result.hm is None
    assert result.average == pytest.approx((0.8 + 0.7 + 0.56) / 3)
    assert result.forgetting == pytest.approx(0.3)
    with pytest.raises(InvalidResultError, match="without new classes"):
        small(accuracy=((0.8, None, None), (0.7, None, None), (0.5, 0.4, 0.9)))
