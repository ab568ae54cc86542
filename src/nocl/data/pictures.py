"""A user's pictures of any kind as a learner's input: ``uint8 [B, 3, size, size]``.

Arrays and tensors (one image or a batch, channels first or last), PIL images, paths, open files and the bytes of a
file, one or a list of them; an array of paths is such a list. Images of another size are resized like files, by
:mod:`nocl.data.decode`. What the user passes in is left as it is: images keep their size, files stay open at their
position.
"""

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from nocl.data.decode import BadImageError, Fit, decode, to_pixels

Picture = NDArray[np.uint8] | Tensor | Image.Image | str | Path | bytes | bytearray | memoryview | BinaryIO
Pictures = Picture | Sequence[Picture] | NDArray[np.str_] | NDArray[np.object_]

_KINDS = "arrays, tensors, PIL images, paths, open files or bytes"


def batch_of(pictures: Pictures, size: int, fit: Fit = "crop") -> Tensor:
    """All pictures as one batch; an error names a bad one and the reason."""
    rows = list(pixels_of(pictures, size, fit))
    if not rows:
        return torch.zeros(0, 3, size, size, dtype=torch.uint8)
    return torch.from_numpy(np.stack(rows))


def are_files(pictures: Pictures) -> TypeGuard[Collection[str | Path]]:
    """Whether it is a list, or an array, of paths."""
    is_list = isinstance(pictures, list | tuple) or (_holds_objects(pictures) and pictures.ndim == 1)
    return is_list and all(isinstance(each, str | Path) for each in cast("Iterable[Any]", pictures))


class PictureFiles:
    """Files as if they were one array ``uint8 [N, 3, size, size]``: rows are read each time they are asked for."""

    dtype, ndim, base = np.dtype(np.uint8), 4, None

    def __init__(self, files: Collection[str | Path], size: int, fit: Fit) -> None:
        self.files, self.size, self.fit = [Path(file) for file in files], size, fit
        self.shape = (len(files), 3, size, size)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return batch_of([self.files[row] for row in rows], self.size, self.fit).numpy()

    def as_array(self) -> NDArray[np.uint8]:
        """Itself, for an ``ImageSet``, which asks no more of an array than this."""
        return cast("NDArray[np.uint8]", self)


def pixels_of(pictures: Pictures, size: int, fit: Fit = "crop") -> Iterator[NDArray[np.uint8]]:
    """One ``uint8 [3, size, size]`` after the other."""
    given: Any = _listed(pictures) if _holds_objects(pictures) else pictures
    if isinstance(given, np.ndarray | Tensor):
        yield from (_fitted(image, size, fit) for image in _images_in(given, 0))
    elif isinstance(given, Image.Image | str | Path | bytes | bytearray | memoryview) or hasattr(given, "read"):
        yield _one(given, size, fit, 0)
    elif not isinstance(given, Iterable):
        raise TypeError(f"images must be {_KINDS}, or a list of them, not {given!r}")
    else:
        for position, picture in enumerate(given):
            yield _one(picture, size, fit, position)


def _holds_objects(pictures: Pictures) -> TypeGuard[NDArray[np.object_]]:
    """Whether it is an array of text or of Python objects, as a column of a table is, and not of pixels."""
    return isinstance(pictures, np.ndarray) and pictures.dtype.kind in "UO"


def _listed(array: NDArray[np.object_]) -> Any:
    if array.ndim > 1:
        raise ValueError(
            f"an array of {array.dtype} must have one dimension, not {list(array.shape)}; give paths as array.ravel(), "
            "pixels as array.astype('uint8')"
        )
    return array.tolist()


def _one(picture: Picture, size: int, fit: Fit, position: int) -> NDArray[np.uint8]:
    if isinstance(picture, np.ndarray | Tensor):
        found = list(_images_in(picture, position))
        if len(found) != 1:
            raise ValueError(
                f"picture {position} is a batch of {len(found)}; give one batch or a list of single images"
            )
        return _fitted(found[0], size, fit)
    where = str(picture) if isinstance(picture, str | Path) else f"picture {position}"
    try:
        if isinstance(picture, Image.Image):
            return _from_opened(picture, size, fit)
        if isinstance(picture, bytes | bytearray | memoryview):
            return decode(io.BytesIO(picture), size, fit)
        if isinstance(picture, str | Path):
            return decode(Path(picture), size, fit)
        if hasattr(picture, "read"):
            return decode(io.BytesIO(_content(picture, where)), size, fit)
    except BadImageError as error:
        raise BadImageError(f"{where}: {error}") from error
    raise TypeError(f"{where} is a {type(picture).__name__}; give {_KINDS}")


def _from_opened(image: Image.Image, size: int, fit: Fit) -> NDArray[np.uint8]:
    try:
        return to_pixels(image, size, fit)
    except BadImageError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors for pixels that it cannot read or convert
        if getattr(image, "tile", None) and getattr(image, "fp", None) is None:
            raise BadImageError("closed before its pixels were read; call load() before closing it") from error
        raise BadImageError(f"cannot be read: {error}; give a whole, open image that converts to RGB") from error


def _content(file: BinaryIO, where: str) -> bytes:
    """All bytes of an open file, which is left at its position; what cannot seek is read from where it stands."""
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"{where} is a file opened as text; open it with mode 'rb'")
    try:
        position = file.tell() if hasattr(file, "seekable") and file.seekable() else None
        try:
            if position is not None:
                file.seek(0)
            content: object = file.read()
        finally:
            if position is not None:
                file.seek(position)
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        raise BadImageError(f"cannot be read: {error}") from error
    if not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(f"{where}: its read() gives {type(content).__name__}, not bytes; give its content as bytes")
    return bytes(content)


def _images_in(array: NDArray[np.uint8] | Tensor, position: int) -> NDArray[np.uint8]:
    """An array of one image or many, the first at ``position``, as ``uint8 [B, 3, H, W]``."""
    values = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    if values.dtype != np.uint8:
        raise TypeError(f"pixels must be uint8 from 0 to 255, not {values.dtype}; convert them first")
    batch = values[None] if values.ndim == 3 else values
    if batch.ndim != 4 or 3 not in (batch.shape[1], batch.shape[3]):
        raise ValueError(f"images must be [B, 3, H, W] or [B, H, W, 3] (or one without B), not {list(values.shape)}")
    images = batch if batch.shape[1] == 3 else batch.transpose(0, 3, 1, 2)
    if len(images) and 0 in images.shape[2:]:
        raise BadImageError(
            f"picture {position} has no pixels: its shape is {list(values.shape)}; height and width must be at least 1"
        )
    return images


def _fitted(image: NDArray[np.uint8], size: int, fit: Fit) -> NDArray[np.uint8]:
    if image.shape[1:] == (size, size):
        return np.ascontiguousarray(image)
    return to_pixels(Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))), size, fit)
