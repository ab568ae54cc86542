"""Uploads that are cut off, overtaken by another model, given up, or larger together than the memory for them."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("httpx", reason="the test client needs httpx")

from fastapi.testclient import TestClient

from nocl.app.serve import uploads
from nocl.app.serve.app import build
from nocl.app.serve.limits import Limits
from nocl.app.serve.room import Shelf
from nocl.app.serve.store import Store
from tests.support.practice_models import fitted, png

FORM = {"content-type": "multipart/form-data; boundary=b"}


def client(store: Store, **limits: Any) -> TestClient:
    return TestClient(build(store, limits=Limits(**limits)), base_url="http://127.0.0.1:8000")


def form(*pictures: bytes, label: str = "blue") -> bytes:
    body = f'--b\r\nContent-Disposition: form-data; name="label"\r\n\r\n{label}\r\n'.encode()
    for picture in pictures:
        body += b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + picture + b"\r\n"
    return body + b"--b--\r\n"


def counts(web: TestClient) -> dict[str, int]:
    return {one["name"]: one["images_learned"] for one in web.get("/classes").json()["classes"]}


@pytest.mark.parametrize("missing", [5, 6, 8, 100])
def test_a_form_that_is_cut_off_teaches_nothing(path: Path, missing: int) -> None:
    whole = form(png("blue"), png("blue", 1))
    with client(Store(path)) as web:
        for place in ("/learn", "/predict"):
            answer = web.post(place, content=whole[:-missing], headers=FORM)
            assert (answer.status_code, "the form is cut off" in answer.json()["detail"]) == (422, True)
        assert "blue" not in counts(web)
        assert web.post("/learn", content=whole[:-2], headers=FORM).json()["learned"] == 2  # no line end: still whole


def test_a_media_type_may_be_written_in_any_case(path: Path) -> None:
    with client(Store(path)) as web:
        kind = {"content-type": "Multipart/Form-Data; boundary=b"}
        assert web.post("/learn", content=form(png("blue")), headers=kind).status_code == 200
        kind = {"content-type": "multipart/form-database; boundary=b"}
        assert web.post("/learn", content=form(png("blue")), headers=kind).status_code == 415


@pytest.mark.parametrize("place", ["/predict", "/learn"])
def test_pictures_fit_the_model_that_is_there_once_they_have_arrived(path: Path, place: str) -> None:
    store, larger = Store(path), fitted(n=2, size=48)

    def arriving() -> Iterator[bytes]:
        body = form(png("blue"))
        yield body[:80]
        store.replace(larger)
        yield body[80:]

    with client(store) as web:
        assert web.post(place, content=arriving(), headers=FORM).status_code == 200
        assert store.model.size == 48


@pytest.mark.parametrize("place", ["/predict", "/learn"])
@pytest.mark.parametrize("change", [{"size": 48}, {"fit": "squash"}])
def test_pictures_for_a_model_that_was_replaced_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, change: dict[str, Any]
) -> None:
    store, other = Store(path), fitted(n=2, size=change.get("size"))
    other._fit = change.get("fit", other.fit_to_size)
    decode = uploads.decode

    def overtaken(*given: Any, **more: Any) -> Any:
        store.replace(other)
        return decode(*given, **more)

    with client(store) as web:
        monkeypatch.setattr(uploads, "decode", overtaken)
        answer = web.post(place, content=form(png("blue")), headers=FORM)
        assert (answer.status_code, answer.json()["detail"]) == (409, "the model was replaced meanwhile, send it again")
        assert counts(web) == {"red": 2, "green": 2}
        monkeypatch.setattr(uploads, "decode", decode)
        assert web.post(place, content=form(png("blue")), headers=FORM).status_code == 200


@pytest.mark.parametrize("place", ["/predict", "/learn"])
def test_decoded_pictures_count_against_the_memory_for_requests(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    fitted(n=2, size=128).save(path)
    store, opened = Store(path), threading.Event()
    learn, score = store.learn, store.model.learner_.decision_function
    monkeypatch.setattr(store, "learn", lambda *given: (opened.wait(10), learn(*given))[1])
    monkeypatch.setattr(store.model.learner_, "decision_function", lambda x: (opened.wait(10), score(x))[1])
    shelves = spied(monkeypatch)
    body = form(*[png("blue", size=8)] * 12)  # 12 x 3 x 128 x 128 bytes decoded: 590 kB of the 1 MB for large ones
    with client(store, bodies_bytes=2 << 20) as web, ThreadPoolExecutor(1) as pool:
        first = pool.submit(web.post, place, content=body, headers=FORM)
        until(lambda: shelves[1].used > 500_000)
        busy = web.post(place, content=body, headers=FORM)
        assert (busy.status_code, "too many uploads" in busy.json()["detail"]) == (429, True)
        opened.set()
        assert first.result(10).status_code == 200
        assert [shelf.used for shelf in shelves] == [0, 0]
        assert web.post(place, content=body, headers=FORM).status_code == 200
        refused = web.post(place, content=form(*[png("blue", size=8)] * 30), headers=FORM)
        assert (refused.status_code, "send at most 21" in refused.json()["detail"]) == (413, True)
        assert [shelf.used for shelf in shelves] == [0, 0]


def test_lessons_wait_and_are_learned_together_by_their_pictures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, opened = Store(path), threading.Event()
    learn, groups = store.learn, []

    def slow(pictures: Any, *given: Any) -> Any:
        opened.wait(10)
        groups.append(sum(len(x) for x, _ in pictures))
        return learn(pictures, *given)

    monkeypatch.setattr(store, "learn", slow)
    with client(store, waiting_learnings=12, together=6) as web, ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(web.post, "/learn", content=form(*[png("blue")] * 4), headers=FORM) for _ in range(3)]
        until(lambda: 'nocl_waiting{queue="learn"} 12.0' in web.get("/metrics").text)
        assert web.post("/learn", content=form(png("blue")), headers=FORM).status_code == 429
        opened.set()
        assert {job.result(10).status_code for job in jobs} == {200}
    assert groups == [4, 4, 4]


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Shelf]:
    """The shelves of the services built from now on: for small requests, for large ones."""
    made: list[Shelf] = []

    def shelf(total: int) -> Shelf:
        made.append(Shelf(total))
        return made[-1]

    monkeypatch.setattr(uploads, "Shelf", shelf)
    return made


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)
