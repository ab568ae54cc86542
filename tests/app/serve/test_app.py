"""The service over HTTP: answers, limits, tokens, headers, learning while predicting."""

import io
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx", reason="the test client needs httpx")

import torch
from fastapi.testclient import TestClient
from PIL import Image

from nocl.app.classifier import Classifier
from nocl.app.serve.app import build
from nocl.app.serve.limits import Limits
from nocl.app.serve.server import UnsafeAddressError, check_address
from nocl.app.serve.store import Store, journal_of
from nocl.app.serve.workers import FullError, Lesson, Worker, teacher
from tests.support.practice_models import fitted, pictures, png

TOKEN = "a-token-of-good-length"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted(n=6).save(tmp_path / "m.nocl")
    return tmp_path / "m.nocl"


def client(path: Path, *, token: str | None = None, **limits: Any) -> TestClient:
    return at_home(build(Store(path), token=token, limits=Limits(**limits)))


def at_home(app: Any) -> TestClient:
    """A client that calls the service by an address of this machine."""
    return TestClient(app, base_url="http://127.0.0.1:8000")


def files(*contents: bytes) -> list[tuple[str, tuple[str, bytes, str]]]:
    return [("images", (f"{i}.png", content, "image/png")) for i, content in enumerate(contents)]


def test_teach_recognise_forget_and_find_it_on_disk(path: Path) -> None:
    with client(path) as web:
        learned = web.post("/learn", data={"label": "blue"}, files=files(png("blue"), png("blue", 1)))
        assert learned.json() == {"label": "blue", "learned": 2, "count": 2, "classes": 3, "sequence": 1}
        answer = web.post("/predict", files=files(png("blue", 5), png("red", 5))).json()["predictions"]
        assert [one["label"] for one in answer] == ["blue", "red"]
        assert sum(one["probability"] for one in answer[0]["top"]) == pytest.approx(1, abs=1e-5)
        assert len(web.post("/predict?top=1", files=files(png("red"))).json()["predictions"][0]["top"]) == 1
        listed = web.get("/classes").json()
        assert [(one["name"], one["images_learned"]) for one in listed["classes"]] == [
            ("red", 6), ("green", 6), ("blue", 2),
        ]  # fmt: skip
        assert listed["privacy"]["images_stored"] == 0
        assert web.delete("/classes/green").json() == {"forgotten": "green", "classes": 2, "exactly": True}
        assert web.delete("/classes/green").status_code == 404
    assert Classifier.load(path).counts_ == {"red": 6, "blue": 2}
    assert not journal_of(path).exists()


def test_names_with_odd_characters_can_be_taught_and_forgotten(path: Path) -> None:
    with client(path) as web:
        for name in ("a/b", "Größe 7 %", "?x=1", ".."):
            assert web.post("/learn", data={"label": name}, files=files(png("blue"))).status_code == 200
        names = {one["name"] for one in web.get("/classes").json()["classes"]}
        assert {"a/b", "Größe 7 %", "?x=1", ".."} <= names
        for name in ("a/b", "Größe 7 %", "?x=1"):
            assert web.delete(f"/classes/{quote(name, safe='')}").status_code == 200


def big_png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("1", (width, height)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("send", "status", "words"),
    [
        ({"files": files(b"junk")}, 422, "0.png: not an image"),
        ({"files": files(png("red")[:100])}, 422, "0.png: damaged"),
        ({"files": files(b"")}, 422, "empty"),
        ({"data": {"label": "x"}}, 415, "multipart"),
        ({"files": [("other", ("a.png", png("red"), "image/png"))]}, 422, "field 'images'"),
        ({"files": files(*[png("red")] * 5)}, 413, "at most 4 pictures"),
        ({"files": files(png("red") + bytes(60_000))}, 413, "at most"),
        ({"files": files(big_png(1200, 1000))}, 413, "above the limit of 1000000"),
        ({"content": b"--x\r\nbad", "headers": {"content-type": "multipart/form-data"}}, 422, "bad form"),
    ],
)
def test_bad_requests_get_their_reason(path: Path, send: dict[str, Any], status: int, words: str) -> None:
    with client(path, images=4, body_bytes=50_000, pixels=1_000_000) as web:
        answer = web.post("/predict", **send)
        assert answer.status_code == status
        assert words in answer.json()["detail"]
        if "files" in send:
            again = web.post("/learn", data={"label": "new"}, **send)
            assert again.status_code == status
        assert [one["name"] for one in web.get("/classes").json()["classes"]] == ["red", "green"]


def test_a_body_without_a_declared_length_is_counted_as_it_comes(path: Path) -> None:
    def endless() -> Any:
        yield b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield bytes(10_000)

    with client(path, body_bytes=50_000) as web:
        answer = web.post("/predict", content=endless(), headers={"content-type": "multipart/form-data; boundary=b"})
        assert answer.status_code == 413


def test_labels_are_checked(path: Path) -> None:
    with client(path, classes=3) as web:
        for label in ("", "   ", "x" * 201, "a\x00b"):
            assert web.post("/learn", data={"label": label}, files=files(png("red"))).status_code == 422
        assert web.post("/learn", data={"label": "third"}, files=files(png("red"))).status_code == 200
        full = web.post("/learn", data={"label": "fourth"}, files=files(png("red")))
        assert full.status_code == 429
        assert "limit is 3" in full.json()["detail"]
        assert web.post("/learn", data={"label": "red"}, files=files(png("red"))).status_code == 200


def test_changes_need_the_token_and_reading_does_not(path: Path) -> None:
    with client(path, token=TOKEN) as web:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Basic x"}):
            assert web.post("/learn", data={"label": "x"}, files=files(png("red")), headers=headers).status_code == 401
            assert web.delete("/classes/red", headers=headers).status_code == 401
        assert web.post("/predict", files=files(png("red"))).status_code == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert web.post("/learn", data={"label": "x"}, files=files(png("red")), headers=right).status_code == 200
        assert web.delete("/classes/x", headers=right).status_code == 200
        assert web.get("/classes").json()["needs_token"] is True


def test_without_a_token_other_sites_and_names_are_refused(path: Path) -> None:
    with client(path) as web:
        for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "rebound.example"}, {"Origin": "null"}):
            assert web.delete("/classes/red", headers=headers).status_code == 403
        assert web.delete("/classes/red", headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


def test_listening_to_others_needs_a_token() -> None:
    check_address("127.0.0.1", None)
    check_address("localhost", None)
    check_address("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(UnsafeAddressError, match="NOCL_TOKEN"):
            check_address(host, None)
    with pytest.raises(UnsafeAddressError, match="at least 16"):
        check_address("0.0.0.0", "short")


def test_headers_page_health_and_metrics(path: Path) -> None:
    with client(path) as web:
        for place in ("/", "/page.js", "/page.css", "/docs", "/docs.js", "/icon.svg", "/healthz", "/nowhere"):
            answer = web.get(place)
            assert answer.status_code == (404 if place == "/nowhere" else 200)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
        for place in ("/", "/page.js", "/page.css", "/docs", "/docs.js"):
            text = web.get(place).text
            assert "https:" not in text
            assert "http:" not in text
        web.post("/predict", files=files(png("red"), png("red")))
        web.post("/learn", data={"label": "x"}, files=files(png("red")))
        metrics = web.get("/metrics").text
        assert "nocl_images_predicted_total 2.0" in metrics
        assert "nocl_images_learned_total 1.0" in metrics
        assert "nocl_classes 3.0" in metrics
        assert 'nocl_requests_total{path="/predict",status="200"} 1.0' in metrics
        paths = web.get("/openapi.json").json()["paths"]
        assert set(paths) == {
            "/healthz", "/classes", "/metrics", "/predict", "/learn", "/classes/{name}", "/undo", "/model",
        }  # fmt: skip
        assert web.get("/healthz").json()["status"] == "ok"


def test_an_empty_model_says_that_it_knows_nothing(path: Path) -> None:
    with client(path) as web:
        for name in ("red", "green"):
            web.delete(f"/classes/{name}")
        answer = web.post("/predict", files=files(png("red")))
        assert answer.status_code == 409
        assert "teach" in answer.json()["detail"]


def test_a_full_disk_is_an_error_to_the_client(path: Path) -> None:
    store = Store(path)
    with at_home(build(store)) as web:
        base = store._journal._base
        base.execute(f"PRAGMA max_page_count={base.execute('PRAGMA page_count').fetchone()[0]}")
        for i in range(40):  # until the last page is full
            answer = web.post("/learn", data={"label": f"x{i}"}, files=files(png("red")))
            if answer.status_code != 200:
                break
        assert answer.status_code == 507
        assert "nothing was learned" in answer.json()["detail"]
        assert f"x{i}" not in [one["name"] for one in web.get("/classes").json()["classes"]]
        health = web.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "failing")
        base.execute("PRAGMA max_page_count=100000")
        assert web.post("/learn", data={"label": f"x{i}"}, files=files(png("red"))).json()["count"] == 1
        assert web.get("/healthz").json()["status"] == "ok"


def test_lessons_that_are_durable_are_not_reported_as_failed_when_a_forget_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nocl.app.modelfile.write_atomically", full)
    gate = threading.Event()
    learn = store.learn
    monkeypatch.setattr(store, "learn", lambda *given: (gate.wait(10), learn(*given))[1])
    worker = teacher(store, waiting=10, together=10, max_classes=10)
    x = pictures("blue", 1)
    first = worker.submit(Lesson("red", x), 1)
    group = [worker.submit(lesson, 1) for lesson in (Lesson("blue", x), Lesson("blue", x), Lesson("red", None))]
    gate.set()
    assert [first.result(10).values["count"], *(job.result(10).values["count"] for job in group[:2])] == [7, 2, 2]
    with pytest.raises(OSError, match="No space"):
        group[2].result(10)
    worker.close()


def test_a_request_sent_again_with_its_key_is_answered_and_not_done_again(path: Path) -> None:
    key = {"Idempotency-Key": "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"}
    ask: dict[str, Any] = {"data": {"label": "blue"}, "files": files(png("blue")), "headers": key}
    with client(path) as web:
        first = web.post("/learn", **ask)
        assert first.json()["count"] == 1
        assert web.post("/learn", **ask).json() == first.json()
        assert web.post("/learn", **{**ask, "data": {"label": "red"}}).status_code == 422
        assert web.post("/learn", **{**ask, "headers": {"Idempotency-Key": "x" * 201}}).status_code == 422
    with client(path) as web:  # restarted
        assert web.post("/learn", **ask).json() == first.json()
        assert web.get("/classes").json()["classes"][2]["images_learned"] == 1
        gone = web.delete("/classes/blue", headers={"Idempotency-Key": "2"})
        assert web.delete("/classes/blue", headers={"Idempotency-Key": "2"}).json() == gone.json()
        assert web.delete("/classes/blue", headers={"Idempotency-Key": "3"}).status_code == 404
        with ThreadPoolExecutor(4) as pool:
            same = {**ask, "headers": {"Idempotency-Key": "4"}}
            jobs = [pool.submit(web.post, "/learn", **same) for _ in range(8)]
            assert {job.result().json()["count"] for job in jobs} == {1}
        assert "nocl_images_learned_total 1.0" in web.get("/metrics").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 403),
        ({"Host": "testserver"}, 403),
        ({"Host": "127.0.0.1.rebound.example:8000"}, 403),
        ({"Host": "192.0.2.7"}, 403),
        ({"Host": ""}, 400),
        ({"Host": "[bad"}, 400),
        ({"Host": "a@localhost"}, 400),
        ({"Host": "localhost:notaport"}, 400),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
    ],
)
def test_the_host_is_checked_for_reading_too(path: Path, headers: dict[str, str], status: int) -> None:
    with client(path) as web:
        for place in ("/classes", "/healthz", "/"):
            assert web.get(place, headers=headers).status_code == status


def test_a_broken_origin_is_refused(path: Path) -> None:
    with client(path) as web:
        for origin in ("http://[bad", "http://", "nonsense"):
            assert web.delete("/classes/red", headers={"Origin": origin}).status_code == 403


def test_a_private_service_shows_nothing_without_the_token(path: Path) -> None:
    with pytest.raises(ValueError, match="NOCL_TOKEN"):
        build(Store(path.parent / "m.nocl"), private=True)
    fitted(n=2).save(path.with_name("other.nocl"))
    app = build(Store(path.with_name("other.nocl")), token=TOKEN, private=True, names=["kitchen.example"])
    with at_home(app) as web:
        right = {"Authorization": f"Bearer {TOKEN}"}
        for place in ("/classes", "/metrics"):
            assert web.get(place).status_code == 401
            assert web.get(place, headers=right).status_code == 200
        assert web.post("/predict", files=files(png("red"))).status_code == 401
        assert web.post("/predict", files=files(png("red")), headers=right).status_code == 200
        assert web.get("/").status_code == 200
        assert "classes" not in web.get("/healthz").json()
        assert web.get("/", headers={"Host": "kitchen.example"}).status_code == 200
        assert web.get("/", headers={"Host": "192.0.2.7:80"}).status_code == 200  # an address cannot be rebound
        assert web.get("/", headers={"Host": "rebound.example"}).status_code == 403


def test_many_clients_teach_and_ask_at_once_and_every_lesson_counts(path: Path) -> None:
    with client(path, waiting_learnings=1000, waiting_images=1000) as web, ThreadPoolExecutor(8) as pool:

        def teach(i: int) -> int:
            return web.post("/learn", data={"label": f"c{i % 5}"}, files=files(png("blue", i))).status_code

        def ask(i: int) -> int:
            return web.post("/predict", files=files(png("red", i))).status_code

        jobs = [pool.submit(teach if i % 2 else ask, i) for i in range(60)]
        assert {job.result() for job in jobs} == {200}
    counts = Classifier.load(path).counts_
    assert sum(count for name, count in counts.items() if name.startswith("c")) == 30


def test_a_worker_groups_what_waits_refuses_too_much_and_survives_errors() -> None:
    gate, groups = threading.Event(), []

    def work(items: list[int]) -> list[int]:
        gate.wait(10)
        groups.append(items)
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]

    worker: Worker[int, int] = Worker("test", work, waiting=6, together=4)
    answers = [worker.submit(item, 1) for item in (1, 2, 3, 4, 5, 6)]
    with pytest.raises(FullError, match="6 are waiting, the limit is 6"):
        worker.submit(7, 1)
    gate.set()
    assert [answer.result(10) for answer in answers] == [2, 4, 6, 8, 10, 12]
    assert max(len(group) for group in groups) <= 4
    assert len(groups) < 6
    with pytest.raises(ValueError, match="thirteen"):
        worker.submit(13, 1).result(10)
    assert worker.submit(5, 100).result(10) == 10  # alone, it may be heavier than the limit
    worker.close()
    with pytest.raises(RuntimeError, match="stopping"):
        worker.submit(1, 1)


def test_predictions_do_not_wait_for_learning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(path)
    release, learn = threading.Event(), store.learn

    def slow(*given: Any) -> Any:
        release.wait(20)
        return learn(*given)

    monkeypatch.setattr(store, "learn", slow)
    with at_home(build(store)) as web, ThreadPoolExecutor(1) as pool:
        lesson = pool.submit(web.post, "/learn", data={"label": "x"}, files=files(png("blue")))
        answer = web.post("/predict", files=files(png("red", 2)))
        assert answer.status_code == 200
        assert not lesson.done()
        release.set()
        assert lesson.result(20).status_code == 200


def test_no_picture_touches_the_disk_even_if_it_is_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an upload was written to a temporary file")

    noise = torch.randint(0, 256, (1, 3, 1200, 1200), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    out = io.BytesIO()
    Image.fromarray(noise[0].permute(1, 2, 0).numpy()).save(out, "PNG")
    assert len(out.getvalue()) > 3_000_000
    with client(path) as web:
        monkeypatch.setattr(tempfile, "TemporaryFile", refused)
        assert web.post("/predict", files=files(out.getvalue())).status_code == 200
