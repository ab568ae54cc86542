"""Uploads to batches: a form with pictures, read under limits and never written to disk.

Bodies, decoding and decoded pictures have a fixed amount of memory for all requests together
(:mod:`nocl.app.serve.room`).
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from anyio import to_thread
from fastapi import HTTPException, Request
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from torch import Tensor

from nocl.app.serve.limits import LIGHT_BODY, LIGHT_DECODE, Limits
from nocl.app.serve.room import Room, Shelf
from nocl.app.serve.workers import Frame
from nocl.data.decode import BadImageError, Fit, decode, decoding_bytes

if TYPE_CHECKING:
    from starlette.datastructures import FormData


@dataclass(frozen=True)
class Upload:
    """The pictures of one request as a batch, its label if it had one, and the label that was given by mistake."""

    images: Tensor  # uint8 [B, 3, size, size]
    frame: Frame
    label: str | None
    instead_of: str | None = None
    digest: str = ""  # of the files as they came, if the request has an idempotency key


class Uploads:
    """Reads the uploads of one service."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._small, self._large = Shelf(limits.bodies_bytes // 2), Shelf(limits.bodies_bytes // 2)
        self._light, self._heavy = Room(2 * LIGHT_DECODE, 2), Room(limits.decode_bytes, 2)

    @asynccontextmanager
    async def read(self, request: Request, wanted: Callable[[], Frame]) -> AsyncIterator[Upload]:
        """Read and decode a ``multipart/form-data`` request with fields ``images`` and perhaps ``label``.

        ``wanted`` is called once all has arrived: the model may be replaced while a slow body comes. The pictures
        count against the memory for requests until the block ends.
        """
        with ExitStack() as held:
            async with self._form(request) as form:
                files, label, wrong = _fields(form)
                keyed = "idempotency-key" in request.headers
                digest = await to_thread.run_sync(_digest, [item.file for item in files]) if keyed else ""
                frame = wanted()
                held.enter_context(self._room_for(len(files), frame.size))
                images = torch.empty(len(files), 3, frame.size, frame.size, dtype=torch.uint8)
                for i, item in enumerate(files):
                    images[i] = torch.from_numpy(await self._decoded(item, i, frame))
            yield Upload(images, frame, label, wrong, digest)

    @contextmanager
    def _room_for(self, count: int, size: int) -> Iterator[None]:
        """Hold the bytes of so many decoded pictures; small requests have their own memory here too."""
        one = 3 * size * size
        shelf = self._small if count * one <= LIGHT_BODY else self._large
        if count * one > shelf.total:
            raise HTTPException(
                413, f"{count} pictures of {size} x {size} pixels take more than {shelf.total >> 20} MB; send at most "
                f"{shelf.total // one} in one request"
            )  # fmt: skip
        if not shelf.fits(count * one):
            raise _busy()
        try:
            yield
        finally:
            shelf.give_back(count * one)

    async def _decoded(self, item: UploadFile, position: int, frame: Frame) -> NDArray[np.uint8]:
        """One picture. A cheap one need not wait for those that take much memory."""
        file, limit, (size, fit) = item.file, self._limits.pixels, frame
        try:
            async with self._light.take(LIGHT_DECODE):
                cost = await to_thread.run_sync(_measured, file, size, limit)
                if cost <= LIGHT_DECODE:
                    return await to_thread.run_sync(_pixels, file, size, fit, limit)
            if cost > self._limits.decode_bytes:
                raise BadImageError(
                    f"decoding it would take about {cost >> 20} MB, above the limit of "
                    f"{self._limits.decode_bytes >> 20} MB"
                )
            async with self._heavy.take(cost):
                return await to_thread.run_sync(_pixels, file, size, fit, limit)
        except BadImageError as error:
            too_much = "above the limit" in str(error) or "more pixels" in str(error)
            name = _shown(item.filename or f"picture {position + 1}")
            raise HTTPException(413 if too_much else 422, f"{name}: {error}") from error

    @asynccontextmanager
    async def _form(self, request: Request) -> "AsyncIterator[FormData]":
        """The form of a request, in memory, until the block ends."""
        limits, kind = self._limits, request.headers.get("content-type", "")
        if kind.split(";")[0].strip().lower() != "multipart/form-data":
            raise HTTPException(415, f"send multipart/form-data, not {kind.split(';')[0] or 'nothing'}")
        declared = request.headers.get("content-length", "0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limits.body_bytes:
            raise _too_large(limits)
        held: dict[Shelf, int] = {self._small: 0, self._large: 0}
        try:
            parser = _Form(
                request.headers, self._counted(request, held), max_files=limits.images, max_fields=8,
                max_part_size=1 << 16,  # of fields that are not files
            )  # fmt: skip
            parser.spool_max_size = limits.body_bytes + 1  # larger than any file we take: no picture touches the disk
            form = await _parsed(parser, limits)
            try:
                yield form
            finally:
                await form.close()
        finally:
            for shelf, size in held.items():
                shelf.give_back(size)

    async def _counted(self, request: Request, held: dict[Shelf, int]) -> AsyncGenerator[bytes, None]:
        total = 0
        async for chunk in request.stream():
            total += len(chunk)
            if total > self._limits.body_bytes:
                raise _too_large(self._limits)
            shelf = self._small if total <= LIGHT_BODY else self._large
            if not shelf.fits(len(chunk)):
                raise _busy()
            held[shelf] += len(chunk)
            yield chunk


class _Form(MultiPartParser):
    """Starlette's parser drops a part that does not end; this one knows whether the whole form has ended."""

    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _parsed(parser: _Form, limits: Limits) -> "FormData":
    try:
        async with asyncio.timeout(limits.upload_seconds):
            form = await parser.parse()
    except MultiPartException as error:
        too_many = "Too many files" in error.message
        raise HTTPException(
            413 if too_many else 422,
            f"at most {limits.images} pictures in one request" if too_many else f"bad form: {error.message}",
        ) from error
    except TimeoutError:
        raise HTTPException(408, f"the upload took longer than {limits.upload_seconds:g} s") from None
    if not parser.ended:
        await form.close()
        raise HTTPException(422, "the form is cut off: its last boundary is missing; nothing was done, send it again")
    return form


def _fields(form: "FormData") -> tuple[list[UploadFile], str | None, str | None]:
    """The pictures, the label and the label given by mistake."""
    given = form.getlist("images")
    files = [item for item in given if isinstance(item, UploadFile)]
    if not files or len(files) != len(given):
        raise HTTPException(422, "send pictures as files in the field 'images' of a multipart form")
    label, wrong = form.get("label"), form.get("instead_of")
    if isinstance(label, UploadFile) or isinstance(wrong, UploadFile):
        raise HTTPException(422, "label and instead_of must be text, not files")
    return files, label, wrong


def _busy() -> HTTPException:
    return HTTPException(429, "busy: too many uploads at once", headers={"Retry-After": "2"})


def _too_large(limits: Limits) -> HTTPException:
    return HTTPException(
        413, f"a request may have at most {limits.body_bytes >> 20} MB; send fewer or smaller pictures"
    )


def _digest(files: list[BinaryIO]) -> str:
    """Of all files and where each ends: the same key for other pictures is an error, not a repetition."""
    total = hashlib.sha256()
    for file in files:
        file.seek(0)
        total.update(hashlib.sha256(file.read()).digest())  # in memory already, under the limit of a body
    return total.hexdigest()


def _measured(file: BinaryIO, size: int, pixel_limit: int) -> int:
    file.seek(0)
    return decoding_bytes(file, size, pixel_limit=pixel_limit)


def _pixels(file: BinaryIO, size: int, fit: Fit, pixel_limit: int) -> NDArray[np.uint8]:
    file.seek(0)
    return decode(file, size, fit, pixel_limit=pixel_limit)


def _shown(name: str) -> str:
    return "".join(c for c in name if c.isprintable())[:80] or "picture"
