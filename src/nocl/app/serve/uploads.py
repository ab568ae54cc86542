"""Uploads to batches: a form with pictures, read under limits and never written to disk."""

import asyncio
import io
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from anyio import to_thread
from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from torch import Tensor

from nocl.app.serve.limits import Limits
from nocl.data.decode import BadImageError, Fit, decode

if TYPE_CHECKING:
    from starlette.datastructures import FormData


@dataclass(frozen=True)
class Upload:
    """The pictures of one request as a batch, and its label if it had one."""

    images: Tensor  # uint8 [B, 3, size, size]
    label: str | None


async def read_upload(request: Request, limits: Limits, size: int, fit: Fit) -> Upload:
    """Read and decode a ``multipart/form-data`` request with fields ``images`` and perhaps ``label``."""
    form = await _form(request, limits)
    try:
        given = form.getlist("images")
        files = [item for item in given if isinstance(item, UploadFile)]
        if not files or len(files) != len(given):
            raise HTTPException(422, "send pictures as files in the field 'images' of a multipart form")
        contents = [(item.filename or f"picture {i + 1}", await item.read()) for i, item in enumerate(files)]
        label = form.get("label")
    finally:
        await form.close()
    if isinstance(label, UploadFile):
        raise HTTPException(422, "label must be text, not a file")
    images = await to_thread.run_sync(_decoded, contents, size, fit, limits.pixels)
    return Upload(images, None if label is None else str(label))


async def _form(request: Request, limits: Limits) -> "FormData":
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise HTTPException(415, f"send multipart/form-data, not {kind.split(';')[0] or 'nothing'}")
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > limits.body_bytes:
        raise _too_large(limits)
    parser = MultiPartParser(
        request.headers, _counted(request, limits), max_files=limits.images, max_fields=8,
        max_part_size=1 << 16,  # of fields that are not files
    )  # fmt: skip
    parser.spool_max_size = limits.body_bytes + 1  # larger than any file we take: no picture touches the disk
    try:
        async with asyncio.timeout(limits.upload_seconds):
            return await parser.parse()
    except MultiPartException as error:
        too_many = "Too many files" in error.message
        raise HTTPException(
            413 if too_many else 422,
            f"at most {limits.images} pictures in one request" if too_many else f"bad form: {error.message}",
        ) from error
    except TimeoutError:
        raise HTTPException(408, f"the upload took longer than {limits.upload_seconds:g} s") from None


async def _counted(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > limits.body_bytes:
            raise _too_large(limits)
        yield chunk


def _too_large(limits: Limits) -> HTTPException:
    return HTTPException(
        413, f"a request may have at most {limits.body_bytes >> 20} MB; send fewer or smaller pictures"
    )


def _decoded(contents: list[tuple[str, bytes]], size: int, fit: Fit, pixel_limit: int) -> Tensor:
    rows = []
    for name, content in contents:
        try:
            rows.append(decode(io.BytesIO(content), size, fit, pixel_limit=pixel_limit))
        except BadImageError as error:
            too_many = "above the limit" in str(error) or "more pixels" in str(error)
            raise HTTPException(413 if too_many else 422, f"{_shown(name)}: {error}") from error
    return torch.from_numpy(np.stack(rows))


def _shown(name: str) -> str:
    return "".join(c for c in name if c.isprintable())[:80] or "picture"
