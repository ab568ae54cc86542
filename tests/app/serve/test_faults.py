"""Faults met by attacking the service: keys with other bodies, changes sent again, disks that fail half way, locks."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx", reason="the test client needs httpx")

from fastapi.testclient import TestClient

from nocl import save
from nocl.app.classifier import Classifier
from nocl.app.embed import embed_folder
from nocl.app.serve.app import build
from nocl.app.serve.journal import FailedDiskError, Journal
from nocl.app.serve.store import Key, Store
from nocl.checks import QUICK
from nocl.methods import make
from nocl.plumbing.files import BusyFileError, holding, write_atomically, write_json
from tests.support.practice_models import fitted, pictures, png


def client(path: Path) -> TestClient:
    return TestClient(build(Store(path)), base_url="http://127.0.0.1:8000")


def lesson(*contents: bytes, key: str) -> dict[str, Any]:
    files = [("images", (f"{i}.png", content, "image/png")) for i, content in enumerate(contents)]
    return {"data": {"label": "blue"}, "files": files, "headers": {"Idempotency-Key": key}}


def counts(web: TestClient) -> dict[str, int]:
    return {one["name"]: one["images_learned"] for one in web.get("/classes").json()["classes"]}


def test_a_key_used_for_other_pictures_is_refused_and_not_answered_as_done(path: Path) -> None:
    first, other = png("blue", 1), png("blue", 2)
    with client(path) as web:
        done = web.post("/learn", **lesson(first, key="a"))
        assert web.post("/learn", **lesson(other, key="a")).status_code == 422
        assert web.delete("/classes/blue", headers={"Idempotency-Key": "a"}).status_code == 422
    with client(path) as web:
        assert web.post("/learn", **lesson(first, key="a")).json() == done.json()
        assert web.post("/learn", **lesson(other, key="a")).status_code == 422
        assert web.post("/learn", **lesson(first, other, key="b")).status_code == 200
        assert web.post("/learn", **lesson(other, first, key="b")).status_code == 422
        assert counts(web)["blue"] == 3
        with ThreadPoolExecutor(4) as pool:
            asked = [lesson(png("blue", i % 2), key="c") for i in range(8)]
            answers = [job.result().status_code for job in [pool.submit(web.post, "/learn", **ask) for ask in asked]]
        assert sorted(answers) == [200] * 4 + [422] * 4
        assert counts(web)["blue"] == 4


def test_undo_open_and_empty_are_done_once_under_a_key(path: Path) -> None:
    def keyed(key: str) -> dict[str, str]:
        return {"Idempotency-Key": key}

    with client(path) as web:
        web.post("/learn", **lesson(png("blue"), key="1"))
        web.post("/learn", **lesson(png("blue", 1), key="2"))
        undone = web.post("/undo", headers=keyed("u")).json()
        again = web.post("/undo", headers=keyed("u")).json()
        assert (again["undone"], again["classes"]) == (undone["undone"], undone["classes"]) == ("learn", 3)
        assert counts(web)["blue"] == 1
        content = web.get("/model").content
        assert web.delete("/model", headers=keyed("e")).status_code == 200
        web.post("/learn", **lesson(png("blue", 2), key="3"))  # by another client, before the first asks again
        assert web.delete("/model", headers=keyed("e")).json() == {"classes": 0}
        assert counts(web) == {"blue": 1}
        assert web.put("/model", content=content, headers=keyed("o")).status_code == 200
        web.post("/learn", **lesson(png("blue", 3), key="4"))
    with client(path) as web:
        assert web.put("/model", content=content, headers=keyed("o")).json() == {"classes": 3}
        assert counts(web)["blue"] == 2
        assert web.put("/model", content=content, headers=keyed("e")).status_code == 422


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_model_that_was_replaced_is_not_reported_as_unchanged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "fold", _no_space)
        with pytest.raises(FailedDiskError, match="was replaced"):  # 503 and not "nothing was learned"
            store.replace(store.model.apart(), Key.of("k", "empty"))
    with pytest.raises(FailedDiskError, match="until a restart"):
        store.learn([(pictures("blue", 1), "blue")])
    store.close()
    store = Store(path)
    assert store.model.class_names == []
    assert store.answered(Key.of("k", "empty")) is not None
    store.close()


def test_a_folder_that_cannot_be_flushed_leaves_no_false_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file is in place, then the folder's flush says that the disk is full: the change cannot be denied."""
    store = Store(path)
    store.learn([(pictures("blue", 1), "blue")])
    with monkeypatch.context() as patched:
        patched.setattr("nocl.plumbing.files.sync_folder", _no_space)
        with pytest.raises(FailedDiskError):
            store.forget("blue")
    with pytest.raises(FailedDiskError, match="until a restart"):
        store.learn([(pictures("blue", 1), "blue")])
    store.close()
    store = Store(path)
    assert store.model.class_names == ["red", "green"]
    store.close()


def test_every_writer_is_refused_while_a_service_holds_the_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, inside = tmp_path / "link.nocl", tmp_path / "folder"
    link.symlink_to(path)
    inside.mkdir()
    (inside / "up").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    learner = make("ncm", **{**QUICK})
    store = Store(path)
    before = path.read_bytes()
    for name in (path, link, Path("m.nocl"), Path("folder/up/m.nocl"), Path("folder/../link.nocl")):
        for write in (
            lambda name=name: save(learner, name),
            lambda name=name: fitted(n=2).save(name),
            lambda name=name: write_json(name, {}),
            lambda name=name: write_atomically(name, lambda file: file.write(b"x")),
            lambda name=name: Store(name),
        ):
            with pytest.raises(BusyFileError, match="held by another"):
                write()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".part"] == []
    store.learn([(pictures("blue", 1), "blue")])
    store.close()
    save(learner, link)
    assert link.is_symlink()
    assert path.read_bytes() != before


@pytest.mark.skipif(os.name != "posix", reason="hard links")
def test_a_second_name_of_the_file_is_the_same_file(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "other.nocl"
    other.parent.mkdir()
    os.link(path, other)
    store = Store(path)
    with pytest.raises(BusyFileError, match="held by another"):
        Store(other)
    with pytest.raises(BusyFileError, match="held by another"), holding(other):
        pass
    store.close()
    Store(other).close()


def test_embeddings_are_not_written_over_a_model_that_is_served(path: Path, tmp_path: Path) -> None:
    (tmp_path / "images" / "red").mkdir(parents=True)
    (tmp_path / "images" / "red" / "1.png").write_bytes(png("red"))
    store = Store(path)
    with pytest.raises(BusyFileError):
        embed_folder(tmp_path / "images", path, None)  # type: ignore[arg-type]
    store.close()
    assert Classifier.load(path).class_names == ["red", "green"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("LOCALHOST:8000", 200), ("localhost.", 200), ("127.0.0.1", 200), ("127.9.9.9:1", 200), ("[::1]", 200),
        ("localhost..", 403), ("localhost.example", 403), ("0.0.0.0", 403), ("[::]", 403), ("localhost,evil", 400),
        ("127.1", 403), ("2130706433", 403), ("[::1]x", 400), ("localhost:99999", 400), ("localhost/../x", 400),
        ("localhost#x", 400), ("ⓛocalhost".encode().decode("latin1"), 400),
    ],
)  # fmt: skip
def test_spellings_of_the_host(path: Path, host: str, status: int) -> None:
    with client(path) as web:
        answer = web.get("/classes", headers={"Host": host.encode("latin1")})  # type: ignore[dict-item]
        assert answer.status_code == status


def test_spellings_of_the_origin(path: Path) -> None:
    with client(path) as web:
        for origin in ("null", "", "http://127.0.0.1:8000.evil.example", "http://evil.example#127.0.0.1:8000",
                       "http://127.0.0.1:8000@evil.example", "http://[::1", "\xff", "//", "http://127.0.0.1:99999999",
                       "file://", "http://127.0.0.1:80:80"):  # fmt: skip
            asked = web.delete("/classes/red", headers={"Origin": origin.encode("latin1")})  # type: ignore[dict-item]
            assert asked.status_code == 403, origin
        assert web.delete("/classes/red", headers={"Origin": "HTTP://127.0.0.1:8000"}).status_code == 200
