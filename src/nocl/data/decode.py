"""Image files to pixels: one file, decoded or refused with a reason; many files, in parallel into the cache."""

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from nocl.data.cache import stored
from nocl.plumbing.progress import track
from nocl.plumbing.types import JSON

log = logging.getLogger(__name__)

PIXEL_LIMIT = 80_000_000  # of one file: a few malicious kilobytes could otherwise fill the memory
# crop: keep the proportions and the middle square; squash: keep everything; photo: the inner 7/8 of the middle square,
# bicubic, as networks of ImageNet are tested (short side to size * 256 / 224, then a crop of the centre)
Fit = Literal["crop", "squash", "photo"]

_LARGE = 4_000_000  # larger images are reduced in steps, to save memory
# Memory of Pillow's image and the decoder's own: measured (tests/data/test_decode.py), with a margin.
_BYTES_A_PIXEL = {"WEBP": 17, "AVIF": 13, "JPEG2000": 22, "TIFF": 8}  # 6 for the others
_STRIP_BYTES = 12 << 20
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip

# What cameras, browsers and data sets produce; not EPS, PDF and the like, which call other programs.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP")
_EDITION = 2  # of what decoding gives; raised when it changes, so that cached images are decoded again
_SIXTEEN_BIT_FORMATS = ("PNG", "PPM")  # where Pillow's mode I means 16 bits
# What people take for readable images too, by the file's suffix and by its first bytes.
_OTHER_SUFFIXES = {
    ".heic": "HEIC", ".heif": "HEIC", ".svg": "SVG", ".pdf": "PDF", ".eps": "PostScript", ".psd": "PSD",
    ".jxl": "JPEG XL",
}  # fmt: skip
_OTHER_HEADS = {b"%PDF": "PDF", b"%!PS": "PostScript", b"8BPS": "PSD", b"\xff\x0a": "JPEG XL"}
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


class BadImageError(ValueError):
    """A file or picture that is not a complete image in a supported format."""


class BadImagesError(ValueError):
    """Some of the files of a set cannot be decoded; ``reasons`` has each by path."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = reasons
        lines = "\n".join(f"  {path}: {reason}" for path, reason in sorted(reasons.items()))
        super().__init__(
            f"{len(reasons)} files are not images that can be read; remove or mend them, or, in a folder of your own "
            f"images, leave them out with skip_bad (--skip-bad):\n{lines}"
        )


def decode(
    source: Path | BinaryIO, size: int, fit: Fit = "crop", *, pixel_limit: int = PIXEL_LIMIT
) -> NDArray[np.uint8]:
    """The image in a file as ``uint8 [3, size, size]``: upright, first frame, transparency on white."""
    with _opened(source, pixel_limit) as image:
        _reduce_while_reading(image, size)
        return to_pixels(image, size, fit)


def decoding_bytes(source: Path | BinaryIO, size: int, *, pixel_limit: int = PIXEL_LIMIT) -> int:
    """About how much memory ``decode`` needs at most, found without decoding."""
    form = _webp_sides(source)
    if form is not None:  # Pillow allocates the whole canvas when it opens the file
        _check_pixels(*form, pixel_limit)
        return _cost("WEBP", form[0] * form[1], False)
    with _opened(source, pixel_limit) as image:
        pixels = image.width * image.height
        if image.format == "TIFF":
            pixels = max(pixels, _tile_pixels(image))
        progressive = bool(image.info.get("progressive"))
        if image.format in ("JPEG", "MPO") and not progressive:
            _reduce_while_reading(image, size)  # a progressive JPEG is always decoded at full size
            pixels = image.width * image.height
        return _cost(image.format or "", pixels, progressive)


def to_pixels(image: Image.Image, size: int, fit: Fit = "crop") -> NDArray[np.uint8]:
    """An opened image as ``uint8 [3, size, size]``: upright, transparency on white. The image stays as it is.

    Grey of 16 bits (Pillow's modes ``I;16``, and ``I`` of a PNG, PPM or 16-bit TIFF) is scaled so that 65535 is white.
    Other images of mode ``I`` (32-bit integers) are taken as 8-bit if no value is above 255, and as 16-bit otherwise.
    Values below 0 or above 65535 are refused, and so is mode ``F`` (floating point).
    """
    if 0 in image.size:
        raise BadImageError(f"{image.width}x{image.height} pixels; width and height must be at least 1")
    image.load()  # before the orientation is read: Pillow turns a TIFF, and finds the tags of a PNG, while it loads
    white = _white(image)
    large = image.width * image.height > _LARGE
    whole = _turned(_shrunk(image, size, fit, white) if large else _to_rgb(image, white), _orientation(image))
    if whole.size != (size, size):
        whole = _resized(whole, size, fit)
    return np.ascontiguousarray(np.asarray(whole).transpose(2, 0, 1))


@contextmanager
def _opened(source: Path | BinaryIO, pixel_limit: int) -> Iterator[Image.Image]:
    """Open an image file and check its size before decoding; every problem is a BadImageError."""
    try:
        if (sides := _webp_sides(source)) is not None:
            _check_pixels(*sides, pixel_limit)
        with Image.open(source, formats=_formats()) as image:
            _check_pixels(image.width, image.height, pixel_limit)
            if image.format == "TIFF" and _tile_pixels(image) > max(pixel_limit, 1):
                raise BadImageError(f"tiles of {_tile_pixels(image)} pixels, above the limit of {pixel_limit}")
            yield image
    except BadImageError:
        raise
    except UnidentifiedImageError:
        raise BadImageError(_why_unknown(source)) from None
    except Image.DecompressionBombError:
        raise BadImageError(f"more pixels than the limit of {pixel_limit}") from None
    except Exception as error:  # decoders raise many kinds of errors for damaged files
        raise BadImageError(_why_unread(source, error)) from error


def _why_unknown(source: Path | BinaryIO) -> str:
    """The reason for a file that no decoder takes for its own."""
    head = _first_bytes(source, 1024)
    if not head:
        return "empty file"
    kind = _other_format(head) or (_OTHER_SUFFIXES.get(source.suffix.lower()) if isinstance(source, Path) else None)
    if kind is None:
        return "not an image"
    return f"{kind}, not an image in a format that can be read ({', '.join(_formats())}); convert it to JPEG or PNG"


def _other_format(head: bytes) -> str | None:
    if head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS:
        return "HEIC"
    if b"<svg" in head:
        return "SVG"
    return next((kind for start, kind in _OTHER_HEADS.items() if head.startswith(start)), None)


def _why_unread(source: Path | BinaryIO, error: Exception) -> str:
    """The reason for a file that could not be read: what the system says about it, or that it is damaged."""
    if isinstance(source, Path) and os.path.isdir(source):
        return "a folder, not a picture; give the files in it"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read the file; change its permissions or leave it out"
    if isinstance(error, OSError) and error.errno is not None:  # decoders raise OSError without a number
        return f"cannot be opened: {error.strerror}"
    return f"damaged: {error}"


def _check_pixels(width: int, height: int, limit: int) -> None:
    if width * height > limit:
        raise BadImageError(f"{width}x{height} pixels, above the limit of {limit}")


def _webp_sides(source: Path | BinaryIO) -> tuple[int, int] | None:
    """Width and height of a WebP's canvas, from its first bytes; None for other files."""
    head = _first_bytes(source, 30)
    if len(head) < 30 or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    if head[12:16] == b"VP8X":  # of the canvas; frames of an animation may be much smaller
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


def _first_bytes(source: Path | BinaryIO, count: int) -> bytes:
    if isinstance(source, Path):
        with open(source, "rb") as file:
            return file.read(count)
    source.seek(0)
    head = source.read(count)
    source.seek(0)
    return head


def _tile_pixels(image: Image.Image) -> int:
    """The pixels of one tile of a TIFF: libtiff allocates a whole tile, even if the image is smaller."""
    tags = getattr(image, "tag_v2", {})
    return int(tags.get(322, 0)) * int(tags.get(323, 0))


def _reduce_while_reading(image: Image.Image, size: int) -> None:
    """Decode a large JPEG at a half, a quarter or an eighth of its size, at least twice as large as needed."""
    if image.width * image.height > _LARGE:
        image.draft(None, (2 * size, 2 * size))  # no effect on other formats


def _cost(form: str, pixels: int, progressive: bool) -> int:
    each = 7 if progressive else _BYTES_A_PIXEL.get(form, 6)
    return _STRIP_BYTES + each * pixels + (16 * pixels if pixels <= _LARGE else 0)  # larger ones: by strips


def _shrunk(image: Image.Image, size: int, fit: Fit, white: int) -> Image.Image:
    """A large image as RGB, reduced strip by strip so that it is never in memory twice."""
    left, top, right, bottom = 0, 0, image.width, image.height
    if fit != "squash":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        right, bottom = left + side, top + side
    across, down = max(1, (right - left) // (4 * size)), max(1, (bottom - top) // (4 * size))
    small = Image.new("RGB", (-(-(right - left) // across), -(-(bottom - top) // down)))
    rows = down * max(1, 1_000_000 // ((right - left) * down))
    for start in range(top, bottom, rows):
        strip = _to_rgb(image.crop((left, start, right, min(bottom, start + rows))), white)
        small.paste(strip.reduce((across, down)), (0, (start - top) // down))
    return small


def _orientation(image: Image.Image) -> int:
    """The orientation tag alone: ImageOps.exif_transpose writes all tags anew, and fails at odd ones."""
    try:
        orientation: int = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged tags raise many kinds of errors, and the pixels are whole: upright, as without tags
        return 1
    return orientation


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


@dataclass(frozen=True, eq=False)
class DecodedFiles:
    """The images of a list of files: file ``i`` is row ``i``; ``good`` says which rows hold an image."""

    images: NDArray[np.uint8]
    good: NDArray[np.bool_]


def decode_files(
    name: str, base: Path, files: Sequence[Path], *, size: int, fit: Fit, skip_bad: bool = False
) -> DecodedFiles:
    """All files, decoded once and memory-mapped; decoded again if names, sizes or times of files change.

    ``skip_bad`` leaves out files that cannot be decoded, with a warning; otherwise they raise BadImagesError.
    """
    if size < 1:
        raise ValueError(f"image size must be at least 1, not {size}")
    names = [path.relative_to(base).as_posix() for path in files]
    sources: list[JSON] = [[name, *file_facts(path)] for name, path in zip(names, files, strict=True)]

    def build(file: BinaryIO) -> dict[str, JSON]:
        bad = _write_rows(file, name, files, size, fit)
        if bad and not skip_bad:  # nothing is cached: a file may be corrected without a new time
            raise BadImagesError({str(files[i]): reason for i, reason in bad.items()})
        return {"bad": {names[i]: reason for i, reason in bad.items()}}

    found = stored(name, [_EDITION, fit, sources], size, len(files), build)
    bad: dict[str, str] = found.notes["bad"]
    if bad and not skip_bad:
        raise BadImagesError({str(base / name): reason for name, reason in bad.items()})
    for bad_name, reason in bad.items():
        log.warning("skipped %s: %s", base / bad_name, reason)
    return DecodedFiles(found.images, np.array([name not in bad for name in names], dtype=np.bool_))


def file_facts(path: Path) -> list[JSON]:
    """Size and time of a file, by which a change is noticed; nothing for one that only decoding can report."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]


def _write_rows(file: BinaryIO, name: str, files: Sequence[Path], size: int, fit: Fit) -> dict[int, str]:
    """Write one row for each file, black if the file is bad; returns the reasons by position."""
    bad: dict[int, str] = {}
    black = bytes(3 * size * size)
    results = track(_in_parallel(files, size, fit), f"decoding {name}", total=len(files))
    for position, result in enumerate(results):
        if isinstance(result, BadImageError):
            bad[position] = str(result)
            file.write(black)
        else:
            file.write(result.tobytes())
    return bad


def _in_parallel(files: Sequence[Path], size: int, fit: Fit) -> Iterator[NDArray[np.uint8] | BadImageError]:
    """Results in order, with few in memory. Threads are enough: Pillow decodes without Python's global lock."""
    workers = min(16, os.cpu_count() or 1)
    waiting: deque[Future[NDArray[np.uint8] | BadImageError]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for path in files:
            waiting.append(pool.submit(_attempt, path, size, fit))
            if len(waiting) > 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _attempt(path: Path, size: int, fit: Fit) -> NDArray[np.uint8] | BadImageError:
    try:
        return decode(path, size, fit)
    except BadImageError as error:
        return error


def _formats() -> list[str]:
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


def _white(image: Image.Image) -> int:
    """The value of white in grey of more than 8 bits, found from the whole image: a part of it may be dark."""
    if image.mode != "I":
        return 65535
    low, high = cast("tuple[int, int]", image.getextrema())
    if low < 0 or high > 65535:
        raise BadImageError("pixels of more than 16 bits have no defined white; save it with 8 or 16 bits")
    bits = getattr(image, "tag_v2", {}).get(258)  # BitsPerSample of a TIFF
    return 65535 if high > 255 or image.format in _SIXTEEN_BIT_FORMATS or bits == (16,) else 255


def _to_rgb(image: Image.Image, white: int = 65535) -> Image.Image:
    """Convert any pixel format to 8-bit RGB; ``white`` concerns grey of more than 8 bits."""
    if image.mode.startswith("I"):
        return _from_deep_grey(image, white)
    if image.mode == "F":
        raise BadImageError("floating-point pixels have no defined white; save it with 8 or 16 bits")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")


def _from_deep_grey(image: Image.Image, white: int) -> Image.Image:
    """Grey of more than 8 bits, scaled by its white; Pillow's own conversion would clip it at 255."""
    step = white // 255
    values: NDArray[Any] = np.asarray(image).astype(np.int64)
    return Image.fromarray(((values + step // 2) // step).astype(np.uint8)).convert("RGB")


def _resized(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    if fit == "photo":
        half = min(image.size) * 224 / 256 / 2
        x, y = image.width / 2, image.height / 2
        box = (x - half, y - half, x + half, y + half)
        return image.resize((size, size), Image.Resampling.BICUBIC, box)
    if fit == "crop":
        return ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    return image.resize((size, size), Image.Resampling.LANCZOS)
