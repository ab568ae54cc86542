"""The page in a real browser: teach, recognise, correct, undo, forget; the camera; a bad file; a wrong token.

Nothing is asked of anyone but the service itself.

Set NOCL_SCREENSHOTS to a folder to keep pictures of the page (the ones in docs/ are made so).
"""

import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra serve is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from nocl.app.serve.app import build  # noqa: E402
from nocl.app.serve.store import Store  # noqa: E402
from tests.support.practice_models import fitted, png  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RUNTIME = os.environ.get("NOCL_ONNXRUNTIME_WEB")
TOKEN = "a-token-of-good-length"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")


class Site:
    """A running service and everything its page asked for."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url, self.asked, self.complaints = page, url, [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def message(self, words: str) -> None:
        self.page.locator("#message", has_text=words).wait_for(timeout=15_000)

    def picture(self, name: str) -> None:
        if folder := os.environ.get("NOCL_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",
            ],
        )
        yield launched
        launched.close()


def serving(tmp_path: Path, token: str | None, runtime: Path | None = None) -> tuple[Any, threading.Thread, str]:
    fitted(("red", "green"), n=6).save(tmp_path / "m.nocl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = build(Store(tmp_path / "m.nocl"), token=token, onnxruntime_web=runtime)
    settings = uvicorn.Config(app, port=port, log_level="warning")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    return server, thread, f"http://127.0.0.1:{port}/"


@pytest.fixture(params=[None])
def site(request: pytest.FixtureRequest, browser: Any, tmp_path: Path) -> Iterator[Site]:
    server, thread, url = serving(tmp_path, request.param)
    context = browser.new_context(viewport={"width": 1180, "height": 900})
    opened = Site(context.new_page(), url)
    opened.page.goto(url)
    opened.page.locator("#classes li").first.wait_for()
    yield opened
    context.close()
    server.should_exit = True
    thread.join(20)


def upload(name: str, seed: int = 0) -> dict[str, Any]:
    return {"name": f"{name}{seed}.png", "mimeType": "image/png", "buffer": png(name, seed, size=96)}


def photograph(folder: Path, seed: int) -> str:
    """Ten megabytes, as a telephone makes them: noise does not compress."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2400, 1500, 3), dtype=np.uint8)
    path = folder / f"photo{seed}.png"
    Image.fromarray(pixels).save(path, compress_level=0)
    assert path.stat().st_size > 10_000_000
    return str(path)


def test_teach_recognise_forget(site: Site) -> None:
    page = site.page
    assert page.locator("#stored").inner_text() == "0 pictures stored"
    assert page.locator("#teach-button").is_disabled()
    page.fill("#name", "sky")
    page.set_input_files("#teach-files", [upload("blue", i) for i in range(3)])
    assert page.locator("#chosen li").count() == 3
    page.get_by_label("Leave out blue2.png").click()
    assert page.locator("#teach-button").inner_text() == "Teach 2 pictures"
    page.click("#teach-button")
    site.message("Learned “sky” from 2 pictures")
    row = page.locator("#classes li", has_text="sky")
    assert "2 images learned" in row.inner_text()
    assert "kept" in row.inner_text()

    page.set_input_files("#recognise-files", [upload("blue", 7)])
    best = page.locator("#results li.result").first.locator(".bar").first
    best.wait_for()
    assert "sky" in best.inner_text()
    page.set_input_files("#recognise-files", [upload("green", 7), upload("red", 7)])
    page.locator("#results li.result .bar", has_text="red").first.wait_for()
    page.locator("#results .bars").nth(2).wait_for()
    site.picture("page-desktop")

    row.get_by_role("button", name="Forget sky").click()
    site.picture("page-forget")
    page.click("#confirm-yes")
    site.message("Forgot “sky”")
    assert page.locator("#classes li").count() == 2
    assert all(url.startswith((site.url, "blob:")) for url in site.asked)
    assert site.complaints == []


def test_a_correction_teaches_refreshes_and_can_be_undone(site: Site) -> None:
    page = site.page
    page.set_input_files("#recognise-files", [upload("blue", 7)])
    row = page.locator("#results li.result").first
    row.locator(".bar").first.wait_for()
    row.get_by_label("No, this is …").fill("sky")
    row.get_by_role("button", name="Teach").click()
    site.message("Learned: this is “sky” (1 picture learned, none stored)")
    assert "sky" in row.locator(".bar").first.inner_text()  # asked again after the lesson
    page.locator("#mixed", has_text="“sky” was taken for").wait_for()
    site.picture("page-correct")
    page.click("#undo")
    site.message("Took the last lesson of “sky” back")
    assert page.locator("#classes li").count() == 2
    assert "sky" not in row.inner_text()
    assert page.locator("#undo").is_hidden()


def test_one_touch_on_a_bar_says_what_it_is(site: Site) -> None:
    page = site.page
    page.set_input_files("#recognise-files", [upload("red", 7)])
    page.locator("#results").get_by_role("button", name="No, this is green").click()
    site.message("Learned: this is “green” (7 pictures learned")


def test_a_forgotten_class_comes_back_whole(site: Site) -> None:
    page = site.page
    page.set_input_files("#recognise-files", [upload("red", 7)])
    first = page.locator("#results .bars").first
    first.wait_for()
    before = first.inner_text()
    page.get_by_role("button", name="Forget red").click()
    page.click("#confirm-yes")
    site.message("Forgot “red”")
    assert "red" not in first.inner_text()
    page.click("#undo")
    site.message("“red” is back")
    assert first.inner_text() == before


def test_a_hundred_files_and_large_photographs_are_taught_in_parts(site: Site, tmp_path: Path) -> None:
    page = site.page
    page.fill("#name", "many")
    page.set_input_files("#teach-files", [upload("blue", i % 10) for i in range(100)])
    assert page.locator("#teach-button").inner_text() == "Teach 100 pictures"
    page.click("#teach-button")
    site.message("Learned “many” from 100 pictures")
    assert "100 images learned" in page.locator("#classes li", has_text="many").inner_text()
    page.fill("#name", "photo")
    page.set_input_files("#teach-files", [photograph(tmp_path, i) for i in range(5)])
    sizes: list[int] = []
    page.on("request", lambda r: r.url.endswith("/learn") and sizes.append(int(r.headers.get("content-length", "0"))))
    page.click("#teach-button")
    site.message("Learned “photo” from 5 pictures")
    assert sum(sizes) < 1 << 20  # of 50 MB
    assert site.complaints == []


def test_the_model_can_be_downloaded_opened_and_emptied(site: Site, tmp_path: Path) -> None:
    page = site.page
    with page.expect_download() as waiting:
        page.click("#download")
    waiting.value.save_as(tmp_path / "kept.nocl")
    page.click("#empty")
    page.click("#confirm-yes")
    site.message("The model is empty")
    assert page.locator("#classes li").count() == 0
    assert page.locator("#classes-empty").is_visible()
    page.set_input_files("#open", str(tmp_path / "kept.nocl"))
    page.click("#confirm-yes")
    site.message("Opened: 2 classes")
    assert page.locator("#classes li").count() == 2
    page.set_input_files("#open", [{"name": "x.nocl", "mimeType": "application/octet-stream", "buffer": b"junk"}])
    page.click("#confirm-yes")
    page.locator("#message.bad").wait_for()
    assert page.locator("#classes li").count() == 2


def test_the_camera_teaches_many_while_held_and_is_followed_live(site: Site) -> None:
    page = site.page
    page.fill("#name", "pattern")
    page.locator("#teach [data-camera]").click()
    while not page.evaluate("document.getElementById('video').videoWidth"):
        page.wait_for_timeout(50)
    page.locator("#shoot").hover()
    page.mouse.down()
    page.locator("#camera-count", has_text="4 pictures taken").wait_for()
    page.mouse.up()
    assert page.locator("#camera-thumbs img").count() >= 4
    page.click("#camera-close")
    page.click("#teach-button")
    site.message("Learned “pattern” from")
    page.locator("#recognise [data-camera]").click()
    asked = len([url for url in site.asked if "predict" in url])
    page.click("#live")
    page.locator("#camera-bars .bar", has_text="pattern").first.wait_for()
    page.wait_for_timeout(1500)
    assert len([url for url in site.asked if "predict" in url]) - asked >= 3
    site.picture("page-live")
    page.click("#camera-close")
    assert site.complaints == []


@pytest.mark.skipif(
    RUNTIME is None,
    reason="npm install onnxruntime-web, then set NOCL_ONNXRUNTIME_WEB to node_modules/onnxruntime-web/dist",
)
def test_recognised_on_the_device_nothing_is_sent(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    server, thread, url = serving(tmp_path, None, Path(str(RUNTIME)))
    opened = Site(browser.new_context().new_page(), url)
    page = opened.page
    page.goto(url)
    page.locator("#classes li").first.wait_for()
    page.set_input_files("#recognise-files", [upload("red", 7)])
    by_service = page.locator("#results .bars").first
    by_service.wait_for()
    text = by_service.inner_text()
    page.check("#device")
    page.locator("#message", has_text="recognised in this browser").wait_for(timeout=60_000)
    opened.asked.clear()
    page.set_input_files("#recognise-files", [upload("green", 8)])
    page.locator("#results .bars").nth(1).wait_for()
    assert "green" in page.locator("#results .bar").first.inner_text()
    assert page.locator("#results .bars").nth(1).inner_text().split("\n")[0] == text.split("\n")[0]
    assert not [asked for asked in opened.asked if "predict" in asked]
    assert opened.complaints == []
    server.should_exit = True
    thread.join(20)


def test_every_text_stands_in_the_file_of_words(site: Site) -> None:
    """Another language needs one file: no words are written in the page itself, and none of ours is left out."""
    page = site.page
    source = page.request.get(site.url).text()
    bare = re.sub(r"<[^>]*>", " ", source.split("<body>")[1]).split()
    assert bare == ["nocl"]
    page.locator("[data-words]").first.wait_for(state="attached")
    assert page.evaluate("[...document.querySelectorAll('[data-words]')].every((node) => node.textContent.length > 0)")


def test_a_class_that_reappears_is_improved_and_keys_are_enough(site: Site) -> None:
    page = site.page
    page.set_input_files("#teach-files", [upload("red", 3)])
    page.focus("#name")
    page.keyboard.type("red")
    page.keyboard.press("Enter")
    site.message("Improved “red” with 1 picture: 7 learned, 0 stored.")
    page.locator("#classes li", has_text="green").get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.locator("#confirm[open]").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#confirm[open]").count() == 0
    assert page.locator("#classes li").count() == 2


def test_bad_files_get_a_clear_error(site: Site) -> None:
    page = site.page
    page.set_input_files("#recognise-files", [{"name": "x.png", "mimeType": "image/png", "buffer": b"junk"}])
    site.message("x.png: not an image")
    assert page.locator("#results li").count() == 0
    page.set_input_files("#recognise-files", [{"name": "x.txt", "mimeType": "text/plain", "buffer": b"junk"}])
    site.message("x.txt is not a picture")
    assert page.locator("#message-text").get_attribute("role") == "alert"
    page.fill("#name", "broken")
    page.set_input_files("#teach-files", [upload("red"), {"name": "y.png", "mimeType": "image/png", "buffer": b"junk"}])
    page.click("#teach-button")
    site.message("y.png: not an image")
    assert page.locator("#classes li").count() == 2
    assert page.locator("#chosen li").count() == 2  # still there, to be mended
    site.picture("page-error")


def test_dropping_and_pasting(site: Site) -> None:
    page = site.page
    give = """async ([kind, where, bytes]) => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(bytes)], 'p.png', { type: 'image/png' }));
        const init = { bubbles: true, cancelable: true };
        const event = kind === 'drop' ? new DragEvent('drop', { ...init, dataTransfer: transfer })
                                      : new ClipboardEvent('paste', { ...init, clipboardData: transfer });
        document.querySelector(where).dispatchEvent(event);
    }"""
    page.evaluate(give, ["drop", ".drop[data-for=recognise]", list(png("red", 2))])
    page.locator("#results .bar", has_text="red").first.wait_for()
    page.evaluate(give, ["paste", "body", list(png("green", 2))])
    page.locator("#results .bars").nth(1).wait_for()
    page.evaluate(give, ["drop", ".drop[data-for=teach]", list(png("blue", 2))])
    assert page.locator("#chosen li").count() == 1


@pytest.mark.parametrize("site", [TOKEN], indirect=True)
def test_a_wrong_token_is_refused_and_the_right_one_works(site: Site) -> None:
    page = site.page
    assert page.locator("#token-form").is_visible()
    page.fill("#token", "wrong")
    page.fill("#name", "sky")
    page.set_input_files("#teach-files", [upload("blue")])
    page.click("#teach-button")
    site.message("The token is missing or wrong")
    assert page.locator("#classes li").count() == 2
    page.fill("#token", TOKEN)
    page.click("#teach-button")
    site.message("Learned “sky”")


def test_on_a_telephone_everything_fits(site: Site) -> None:
    page = site.page
    page.set_viewport_size({"width": 375, "height": 780})
    page.set_input_files("#recognise-files", [upload("red", 7)])
    page.locator("#results .bar").first.wait_for()
    page.fill("#name", "a name that is rather long and has to be cut somewhere on a small screen")
    page.set_input_files("#teach-files", [upload("blue", i) for i in range(6)])
    page.click("#teach-button")
    site.message("Learned")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for button in page.locator("button:visible").all():
        assert button.bounding_box()["height"] >= 30
    site.picture("page-phone")


def test_the_interface_page_lists_every_path(site: Site) -> None:
    site.page.goto(site.url + "docs")
    site.page.locator(".doc").first.wait_for()
    text = site.page.locator("main").inner_text()
    for path in (
        "POST /predict",
        "POST /learn",
        "DELETE /classes/{name}",
        "GET /classes",
        "GET /healthz",
        "GET /metrics",
        "POST /undo",
        "GET /model",
        "PUT /model",
        "DELETE /model",
    ):
        assert path in text
    assert all(url.startswith(site.url) for url in site.asked)
