"""Pictures that are small as files and large in memory, one or more of each format, and how much one takes."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def saved(image: Image.Image, form: str, **settings: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **settings)
    return out.getvalue()


def animated_webp(side: int) -> bytes:
    """An animation of two one-pixel frames on a canvas of ``side`` by ``side``: about 130 bytes."""
    pixel = saved(Image.new("RGB", (1, 1)), "WEBP", lossless=True)[12:]  # its VP8L chunk
    frame = bytes(6) + bytes(3) + bytes(3) + struct.pack("<I", 100)[:3] + b"\2" + pixel
    canvas = (side - 1).to_bytes(3, "little") * 2
    chunks = _chunk(b"VP8X", b"\2\0\0\0" + canvas) + _chunk(b"ANIM", bytes(6)) + 2 * _chunk(b"ANMF", frame)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def png_with_text(megabytes: int) -> bytes:
    """A PNG whose compressed notes are large."""
    note = zlib.compress(bytes(1_000_000), 9)
    plain = saved(Image.new("L", (8, 8)), "PNG")
    body = b"k\0\0" + note
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    return plain[:33] + megabytes * chunk + plain[33:]


def tiled_tiff(tile: int) -> bytes:
    """A TIFF of 16 x 16 pixels in one tile of ``tile`` by ``tile``."""
    tags = [
        (256, 16),
        (257, 16),
        (258, 8),
        (259, 5),
        (262, 1),
        (277, 1),
        (322, tile),
        (323, tile),
        (324, 200),
        (325, 40),
    ]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return (head + entries + bytes(4)).ljust(200, b"\0") + b"\x80\0\x40\x50".ljust(40, b"\0")


def hostile(side: int) -> dict[str, bytes]:
    """A picture of each format, ``side`` by ``side``, that compresses well."""
    flat, noise = Image.new("RGB", (side, side)), np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    rough = Image.fromarray(noise).resize((side, side))
    see_through = Image.new("RGBA", (side, side), (9, 9, 9, 9))
    turned = Image.Exif()
    turned[0x0112] = 6
    made = {
        "animated webp": animated_webp(side),
        "webp": saved(flat, "WEBP", method=0),
        "jpeg": saved(rough, "JPEG", quality=20, exif=turned),
        "progressive jpeg": saved(rough, "JPEG", progressive=True, subsampling=0, quality=20),
        "png": saved(flat, "PNG"),
        "png rgba": saved(see_through, "PNG"),
        "png 16 bit grey": saved(Image.new("I;16", (side, side)), "PNG"),
        "png 1 bit": saved(Image.new("1", (side, side)), "PNG"),
        "png palette": saved(Image.new("P", (side, side)), "PNG", transparency=0),
        "gif": saved(Image.new("P", (side, side)), "GIF"),
        "tiff": saved(flat, "TIFF", compression="tiff_lzw"),
        "png notes": png_with_text(60),
        "tiff tile": tiled_tiff(65536),
    }
    if "AVIF" in Image.SAVE:
        made["avif"] = saved(flat.resize((side // 2, side // 2)), "AVIF", speed=10)
    if "JPEG2000" in Image.SAVE:
        made["jpeg 2000"] = saved(flat.resize((side // 2, side // 2)), "JPEG2000")
    return made


def peak_bytes() -> int:
    """The largest resident memory of this process since ``reset_peak``."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def main() -> None:
    """Print what decoding one picture of each format takes, and what was foretold."""
    from nocl.data.decode import BadImageError, decode, decoding_bytes

    for name, content in {"warm": saved(Image.new("RGB", (9, 9)), "PNG"), **hostile(2500)}.items():
        reset_peak()
        before = peak_bytes()
        try:
            foretold = decoding_bytes(io.BytesIO(content), 32)
            decode(io.BytesIO(content), 32)
        except BadImageError as error:
            print(f"{name}: {error}")
            continue
        print(f"{name}: {peak_bytes() - before} {foretold}")


if __name__ == "__main__":
    main()
