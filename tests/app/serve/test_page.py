"""The page in a real browser: teach a class, recognise it, forget it; a bad file; a wrong token; nothing from outside.

Set NOCL_SCREENSHOTS to a folder to keep pictures of the page (the ones in docs/ are made so).
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from nocl.app.serve.app import build  # noqa: E402
from nocl.app.serve.store import Store  # noqa: E402
from tests.support.practice_models import fitted, png  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


def serving(tmp_path: Path, token: str | None) -> tuple[Any, threading.Thread, str]:
    fitted(("red", "green"), n=6).save(tmp_path / "m.nocl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = uvicorn.Config(build(Store(tmp_path / "m.nocl"), token=token), port=port, log_level="warning")
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


def test_teach_recognise_forget(site: Site) -> None:
    page = site.page
    assert page.locator("#stored").inner_text() == "0 images stored"
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
    assert page.locator("#message").get_attribute("role") == "alert"
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
    ):
        assert path in text
    assert all(url.startswith(site.url) for url in site.asked)
