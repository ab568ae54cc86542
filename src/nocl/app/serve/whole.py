"""Routes for the whole model: undo, download, open another, start empty, and the model for the browser.

A model that someone opens is read as any model file: never unpickled, no code named in it is imported.
"""

import asyncio
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException, Request, Response

from nocl.app.classifier import Classifier
from nocl.app.serve.limits import Limits
from nocl.app.serve.store import Key, NothingToUndoError, Receipt, Store
from nocl.app.serve.workers import Lesson, Worker
from nocl.learner import UnsupportedError
from nocl.plumbing.files import file_digest

_RUNTIME = {
    ".mjs": "text/javascript; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
}


class WholeModel:
    """What the routes for the whole model do. Changes go through the one worker that changes the model."""

    def __init__(self, store: Store, learn: "Worker[Lesson, Receipt]", limits: Limits) -> None:
        self._store, self._learn, self._limits = store, learn, limits
        self._opening = asyncio.Lock()  # one model at a time is read into memory

    async def undo(self, request: Request) -> dict[str, Any]:
        """Take the last lesson or forgetting back, exactly. Possible until the next change, for ten minutes."""
        key = key_of(request, "undo")
        try:
            return await self._change(lambda store: store.undo(key), key)
        except NothingToUndoError as error:
            raise HTTPException(409, str(error)) from error

    async def download(self) -> Response:
        """The model as a file."""
        copies: list[Classifier] = []

        def copied(store: Store) -> Receipt:
            copies.append(store.model.copy())
            return Receipt({})

        await self._change(copied, None)  # in turn: a lesson half done would go on in the history of the copy
        content = await asyncio.to_thread(copies[0].to_bytes)
        headers = {"Content-Disposition": _attachment(self._store.path.name)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def open(self, request: Request) -> dict[str, Any]:
        """Replace the model by the file in the body."""
        async with self._opening:
            with tempfile.TemporaryDirectory(prefix="nocl-open-") as folder:
                path = Path(folder) / "model.nocl"
                await self._receive(request, path)
                key = key_of(request, "open", await asyncio.to_thread(file_digest, path))
                try:
                    model = await asyncio.to_thread(Classifier.load, path)
                    return await self._change(lambda store: store.replace(model, key), key)
                except (ValueError, UnsupportedError) as error:
                    said = str(error).replace(str(path), "the file")
                    raise HTTPException(422, f"not opened, the model is as it was: {said}") from error

    async def empty(self, request: Request) -> dict[str, Any]:
        """Replace the model by an empty one with the same network and method."""
        key = key_of(request, "empty")
        return await self._change(lambda store: store.replace(store.model.apart(), key), key)

    async def _change(self, change: Callable[[Store], Receipt], key: Key | None) -> dict[str, Any]:
        receipt = await asyncio.wrap_future(self._learn.submit(Lesson("", None, key, whole=change), 1))
        return receipt.values

    async def _receive(self, request: Request, path: Path) -> None:
        total, limit, seconds = 0, self._limits.model_bytes, self._limits.upload_seconds
        with path.open("wb") as file:
            try:
                async with asyncio.timeout(seconds):
                    async for chunk in request.stream():
                        total += len(chunk)
                        if total > limit:
                            raise HTTPException(413, f"a model file may have at most {limit >> 20} MB")
                        file.write(chunk)
            except TimeoutError:
                raise HTTPException(408, f"the upload took longer than {seconds:g} s") from None


def _attachment(name: str) -> str:
    """The header for a file to be saved: a header is ASCII, so any other name is given twice (RFC 6266)."""
    plain = re.sub(r"[^\w.() -]", "_", name, flags=re.ASCII)
    full = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
    return f'attachment; filename="{plain}"{full}'


def key_of(request: Request, *asked: str | int) -> Key | None:
    """The request's idempotency key, if it has one, with a digest of what is asked."""
    text = request.headers.get("idempotency-key")
    if text is None:
        return None
    if not 1 <= len(text) <= 200 or not text.isprintable():
        raise HTTPException(422, "an Idempotency-Key must have 1 to 200 printable characters, such as a UUID")
    return Key.of(text, *asked)


class OnDevice:
    """What a browser needs to recognise by itself: the model as ONNX, made anew after a change, and the runtime."""

    def __init__(self, store: Store, runtime: Path) -> None:
        if not (runtime / "ort.wasm.bundle.min.mjs").is_file():
            raise FileNotFoundError(
                f"{runtime} is not the dist folder of onnxruntime-web: run `npm install onnxruntime-web` and give "
                "node_modules/onnxruntime-web/dist"
            )
        self._store, self._runtime = store, runtime
        self._lock = threading.Lock()
        self._made: tuple[Classifier, bytes] | None = None

    async def model(self) -> Response:
        """The model as it is now."""
        try:
            content = await asyncio.to_thread(self._exported)
        except UnsupportedError as error:
            raise HTTPException(409, str(error)) from error
        return Response(content, media_type="application/octet-stream")

    async def runtime(self, name: str) -> Response:
        """A file of the runtime."""
        path = self._runtime / name
        if not re.fullmatch(r"[\w.-]+", name) or path.suffix not in _RUNTIME or not path.is_file():
            raise HTTPException(404, f"no file {name[:80]!r}")
        return Response(await asyncio.to_thread(path.read_bytes), media_type=_RUNTIME[path.suffix])

    def _exported(self) -> bytes:
        from nocl.app.onnx import export_onnx  # needs the extra onnx

        with self._lock:
            model = self._store.model
            if self._made is None or self._made[0] is not model:
                with tempfile.TemporaryDirectory(prefix="nocl-onnx-") as folder:
                    path = Path(folder) / "model.onnx"
                    export_onnx(model, path)
                    self._made = (model, path.read_bytes())
            return self._made[1]
