"""The whole model over HTTP: undo, download, open, start empty; query fields; what the browser needs."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="httpx is not installed")

from nocl.app.classifier import Classifier  # noqa: E402
from nocl.app.serve import store as stores  # noqa: E402
from nocl.app.serve.app import build  # noqa: E402
from nocl.app.serve.store import Store  # noqa: E402
from nocl.app.serve.whole import OnDevice  # noqa: E402
from tests.support.practice_models import fitted, pictures, png, same_bits, state  # noqa: E402


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted(n=3).save(tmp_path / "m.nocl")
    return tmp_path / "m.nocl"


@pytest.fixture
def client(path: Path) -> Iterator[Any]:
    with testclient.TestClient(build(Store(path)), base_url="http://localhost") as opened:
        yield opened


def learn(client: Any, name: str, n: int = 1, **fields: str) -> Any:
    files = [("images", (f"{i}.png", png("blue", i), "image/png")) for i in range(n)]
    return client.post("/learn", files=files, data={"label": name, **fields})


def names(client: Any) -> list[str]:
    return [one["name"] for one in client.get("/classes").json()["classes"]]


def test_undo_brings_back_every_bit_on_disk_too(path: Path) -> None:
    store = Store(path)
    before = state(store.model)
    store.learn([(pictures("blue", 2), "sky")])
    assert store.undo().values == {"undone": "learn", "label": "sky", "classes": 2}
    assert same_bits(state(store.model), before)
    store.forget("red")
    store.undo()
    assert same_bits(state(store.model), before)
    with pytest.raises(stores.NothingToUndoError):
        store.undo()
    store.close()
    assert same_bits(state(Classifier.load(path)), before)


def test_lessons_after_an_undo_survive_a_restart(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 2), "sky")])
    store.undo()
    store.learn([(pictures("grey", 2), "stone")])
    store._journal.close()
    store._lock.release()  # what a kill leaves
    again = Store(path)
    assert again.model.counts_ == {"red": 3, "green": 3, "stone": 2}
    again.close()


def test_what_several_learned_together_is_not_taken_back_by_one(path: Path) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "sky"), (pictures("grey", 1), "stone")])
    assert store.before is None
    store.close()


def test_a_change_can_be_taken_back_for_a_limited_time_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "UNDO_SECONDS", -1.0)
    store = Store(path)
    store.forget("red")
    assert store.before is None
    store.close()


def test_undo_over_http(client: Any) -> None:
    assert client.post("/undo").status_code == 409
    assert learn(client, "sky").status_code == 200
    assert client.get("/classes").json()["undo"]
    assert client.post("/undo").json()["label"] == "sky"
    assert names(client) == ["red", "green"]
    assert not client.get("/classes").json()["undo"]


def test_the_model_goes_out_and_comes_back(client: Any, tmp_path: Path) -> None:
    answer = client.get("/model")
    assert answer.headers["content-disposition"] == 'attachment; filename="m.nocl"'
    (tmp_path / "copy.nocl").write_bytes(answer.content)
    assert Classifier.load(tmp_path / "copy.nocl").counts_ == {"red": 3, "green": 3}
    assert client.delete("/model").json() == {"classes": 0}
    assert names(client) == []
    assert learn(client, "sky").status_code == 200
    assert client.put("/model", content=answer.content).json() == {"classes": 2}
    assert names(client) == ["red", "green"]
    assert client.post("/undo").json()["undone"] == "replace"
    assert names(client) == ["sky"]


@pytest.mark.parametrize(
    ("name", "plain", "full"),
    [
        ("厨房.nocl", "__.nocl", "%E5%8E%A8%E6%88%BF.nocl"),
        ("Küche 2.nocl", "K_che 2.nocl", "K%C3%BCche%202.nocl"),
        ('a"b.nocl', "a_b.nocl", "a%22b.nocl"),
    ],
)
def test_a_download_has_the_name_of_the_file(path: Path, name: str, plain: str, full: str) -> None:
    path = path.rename(path.with_name(name))
    with testclient.TestClient(build(Store(path)), base_url="http://localhost") as web:
        said = web.get("/model").headers["content-disposition"]
    assert said == f"attachment; filename=\"{plain}\"; filename*=UTF-8''{full}"


def test_a_download_during_a_lesson_loses_no_image_when_it_is_merged(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    half_done, go_on, append = threading.Event(), threading.Event(), store._journal.append

    def slow(*given: Any) -> None:
        half_done.set()
        go_on.wait(10)
        append(*given)

    with testclient.TestClient(build(store), base_url="http://localhost") as web, ThreadPoolExecutor(2) as pool:
        learn(web, "cat", 1)
        monkeypatch.setattr(store._journal, "append", slow)
        lesson = pool.submit(learn, web, "cat", 2)
        assert half_done.wait(10)
        download = pool.submit(web.get, "/model")
        time.sleep(0.3)  # long enough to copy the model, if it did not wait for the lesson
        go_on.set()
        assert lesson.result(10).status_code == 200
        (tmp_path / "copy.nocl").write_bytes(download.result(10).content)
        learn(web, "cat", 2)
    copy = Classifier.load(tmp_path / "copy.nocl").partial_fit(pictures("blue", 4, 9), "cat")
    kept = Classifier.load(path)
    with pytest.raises(ValueError, match="both went on learning cat"):
        kept.merge(copy)
    assert kept.counts_["cat"] == 5


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_a_damaged_model_is_not_opened(client: Any, cut: int) -> None:
    content = client.get("/model").content[:cut]
    answer = client.put("/model", content=content)
    assert answer.status_code == 422
    assert "the model is as it was" in answer.json()["detail"]
    assert "/tmp" not in answer.json()["detail"]
    assert names(client) == ["red", "green"]


def test_unknown_query_fields_are_refused_and_known_ones_checked(client: Any) -> None:
    files = [("images", ("a.png", png("red"), "image/png"))]
    assert len(client.post("/predict?top=1", files=files).json()["predictions"][0]["top"]) == 1
    answer = client.post("/predict?tops=1", files=files)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "unknown query field 'tops'; known: top, reject"
    assert client.post("/predict?top=0", files=files).status_code == 422
    assert client.post("/predict?reject=1.5", files=files).status_code == 422
    assert client.get("/classes?x=1").status_code == 422


def test_corrections_are_counted_until_a_class_is_gone(client: Any) -> None:
    learn(client, "sky", instead_of="red")
    learn(client, "sky", instead_of="red")
    learn(client, "sky", instead_of="never met")
    assert client.get("/classes").json()["confused"] == [{"right": "sky", "taken_for": "red", "times": 2}]
    client.delete("/classes/red")
    assert client.get("/classes").json()["confused"] == []


def test_the_interface_lists_its_errors(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"401", "413", "422", "429", "507"} <= paths["/learn"]["post"]["responses"].keys()
    assert paths["/predict"]["post"]["responses"]["413"]["description"] == "too large, or too many pictures"


def test_a_folder_that_is_not_the_runtime_is_named(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    with pytest.raises(FileNotFoundError, match="npm install onnxruntime-web"):
        OnDevice(store, tmp_path)
    store.close()
