"""Decoding: every awkward file comes out right or is refused with its reason."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from nocl.data import decode as decoding
from nocl.data.decode import BadImageError, _to_rgb, decode, decoding_bytes
from tests.support.data_layouts import pixels
from tests.support.hostile_images import animated_webp, tiled_tiff


def quarters() -> np.ndarray:
    """8x8: red and green above, blue and black below."""
    image = np.zeros((8, 8, 3), dtype=np.uint8)
    image[:4, :4, 0] = image[:4, 4:, 1] = image[4:, :4, 2] = 255
    return image


def test_lossless_image_of_the_right_size_is_unchanged(tmp_path: Path) -> None:
    image = pixels(0, 8, 8, 3)
    for suffix in ("png", "bmp", "tiff", "ppm", "tga"):
        Image.fromarray(image).save(tmp_path / f"x.{suffix}")
        np.testing.assert_array_equal(decode(tmp_path / f"x.{suffix}", 8), image.transpose(2, 0, 1))
    Image.fromarray(image).save(tmp_path / "x.webp", lossless=True)
    np.testing.assert_array_equal(decode(tmp_path / "x.webp", 8), image.transpose(2, 0, 1))


def test_exif_rotation_is_undone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn clockwise to see it upright
    turned = np.rot90(quarters(), 1)
    Image.fromarray(turned).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(decode(tmp_path / "x.png", 8), quarters().transpose(2, 0, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_every_orientation_is_undone_as_pillow_does_it(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(quarters()).save(file, form, exif=exif, lossless=True)
    upright = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    np.testing.assert_array_equal(decode(file, 8), np.asarray(upright).transpose(2, 0, 1))


def exif_of(*tags: tuple[int, int, bytes]) -> bytes:
    """EXIF of one value a tag, as (tag, type, four bytes), as a careless program writes it."""
    counts = {2: 4, 3: 1, 9: 1}  # ASCII, SHORT, SLONG
    rows = b"".join(struct.pack("<HHI", tag, kind, counts[kind]) + value for tag, kind, value in tags)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(tags)) + rows + bytes(4)


@pytest.mark.parametrize("odd", [(282, 2, b"72a\0"), (282, 9, struct.pack("<i", -5)), (256, 2, b"640\0")])
def test_odd_tags_beside_the_orientation_do_not_matter(odd: tuple[int, int, bytes]) -> None:
    block = exif_of(odd, (0x0112, 3, struct.pack("<HH", 6, 0)))
    file = io.BytesIO()
    Image.fromarray(np.rot90(quarters(), 1)).save(file, "PNG", exif=block)
    np.testing.assert_array_equal(decode(file, 8), quarters().transpose(2, 0, 1))


def test_tags_that_cannot_be_read_count_as_upright() -> None:
    file = io.BytesIO()
    Image.fromarray(quarters()).save(file, "PNG", exif=b"Exif\0\0this is no TIFF header")
    np.testing.assert_array_equal(decode(file, 8), quarters().transpose(2, 0, 1))


def test_cmyk_jpeg_has_the_colours_of_its_rgb_original(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK").save(tmp_path / "x.jpg", quality=100)
    found = decode(tmp_path / "x.jpg", 16)[:, 8, 8].astype(int)
    assert np.abs(found - [200, 40, 90]).max() <= 3


def test_palette_with_transparency_lies_on_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8), mode="P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.save(tmp_path / "x.png", transparency=0)
    found = decode(tmp_path / "x.png", 2)
    assert found[:, 0, 0].tolist() == [255, 255, 255]
    assert found[:, 0, 1].tolist() == [40, 50, 60]


def test_half_transparent_pixel_is_mixed_with_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (0, 100, 200, 51)).save(tmp_path / "x.png")  # 51 of 255 is one fifth
    assert decode(tmp_path / "x.png", 2)[:, 0, 0].tolist() == [204, 224, 244]


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257], [25700, 65535]], dtype=np.uint16)
    for suffix in ("png", "tiff"):
        Image.fromarray(values).save(tmp_path / f"x.{suffix}")
        found = decode(tmp_path / f"x.{suffix}", 2)
        for channel in found:
            assert channel.tolist() == [[0, 1], [100, 255]]


def test_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for suffix, more in (("gif", {}), ("webp", {"lossless": True}), ("png", {})):
        path = tmp_path / f"x.{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, **more)
        assert decode(path, 4)[:, 0, 0].tolist() == [255, 0, 0]


def test_grey_and_one_bit_images_become_three_equal_channels(tmp_path: Path) -> None:
    for mode, value, expected in (("L", 77, 77), ("1", 1, 255)):
        Image.new(mode, (4, 4), value).save(tmp_path / "x.png")
        assert decode(tmp_path / "x.png", 4)[:, 0, 0].tolist() == [expected] * 3


def test_crop_keeps_the_middle_and_squash_keeps_everything(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, :10, 0] = wide[:, 10:20, 1] = wide[:, 20:, 2] = 255
    Image.fromarray(wide).save(tmp_path / "x.png")
    cropped, squashed = decode(tmp_path / "x.png", 10, "crop"), decode(tmp_path / "x.png", 30, "squash")
    assert cropped[1].min() == 255
    assert cropped[[0, 2]].max() == 0
    assert [squashed[c, 15, x] for c, x in ((0, 4), (1, 15), (2, 25))] == [255, 255, 255]


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("empty.jpg", b"", "empty file"),
        ("note.jpg", b"this is no picture", "not an image"),
        ("script.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        ("page.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    ],
)
def test_what_is_no_image_is_refused(tmp_path: Path, name: str, raw: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(BadImageError, match=reason):
        decode(tmp_path / name, 8)


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("photo.heic", b"\0\0\0\x18ftypheic" + bytes(40), "HEIC"),
        ("renamed.jpg", b"\0\0\0\x18ftypheic" + bytes(40), "HEIC"),
        ("photo.HEIC", b"cut off", "HEIC"),
        ("page.svg", b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        ("page.pdf", b"%PDF-1.7\n", "PDF"),
    ],
)
def test_other_formats_are_named_with_the_remedy(tmp_path: Path, name: str, raw: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(raw)
    words = f"{kind}, not an image in a format that can be read .*JPEG.*PNG.*; convert it to JPEG or PNG"
    with pytest.raises(BadImageError, match=words):
        decode(tmp_path / name, 8)


def test_what_the_system_refuses_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadImageError, match=r"^a folder, not a picture; give the files in it$"):
        decode(tmp_path, 8)
    with pytest.raises(BadImageError, match=r"^cannot be opened: File name too long"):
        decode(tmp_path / ("x" * 300), 8)

    def forbidden(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(decoding, "open", forbidden, raising=False)  # tests may run as root, who may read everything
    with pytest.raises(BadImageError, match=r"^no permission to read the file"):
        decode(tmp_path / "x.png", 8)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tiff"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole.{suffix}"
    Image.fromarray(pixels(0, 64, 64, 3)).save(whole)
    (tmp_path / f"cut.{suffix}").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(BadImageError, match=r"damaged|not an image"):
        decode(tmp_path / f"cut.{suffix}", 8)


def test_damaged_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(pixels(0, 64, 64, 3)).save(tmp_path / "x.png")
    raw = bytearray((tmp_path / "x.png").read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    (tmp_path / "x.png").write_bytes(raw)
    with pytest.raises(BadImageError, match="damaged"):
        decode(tmp_path / "x.png", 8)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is enormous."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("width", [9_000, 100_000])
def test_decompression_bomb_is_refused_by_its_size(tmp_path: Path, width: int) -> None:
    (tmp_path / "x.png").write_bytes(bomb(width, width))
    with pytest.raises(BadImageError, match="limit of 80000000"):
        decode(tmp_path / "x.png", 8)


def test_pixel_formats_without_a_white_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(BadImageError, match="no defined white"):
        decode(tmp_path / "x.tiff", 4)
    Image.fromarray(np.full((4, 4), 70_000, dtype=np.int32)).save(tmp_path / "y.tiff")
    with pytest.raises(BadImageError, match="more than 16 bits"):
        decode(tmp_path / "y.tiff", 4)


def test_only_formats_that_call_no_other_program_are_opened() -> None:
    assert not {"EPS", "PDF", "WMF", "FPX"} & set(decoding._formats())


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "1", "I;16"])
def test_large_images_come_out_as_if_they_had_been_decoded_whole(mode: str, fit: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    coarse = Image.fromarray(draw.integers(0, 256, (6, 9, 3), dtype=np.uint8)).resize((2700, 1800))
    image = coarse.convert("L").convert("I;16") if mode == "I;16" else coarse.convert(mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    image.save(tmp_path / "large.png", compress_level=1)
    got = decode(tmp_path / "large.png", 32, fit).astype(int)
    plain = _to_rgb(image)
    whole = ImageOps.fit(plain, (32, 32), Image.Resampling.LANCZOS) if fit == "crop" else plain.resize((32, 32))
    assert np.abs(got - np.asarray(whole).transpose(2, 0, 1)).mean() < 2.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_photograph_is_turned_upright(orientation: int, tmp_path: Path) -> None:
    corners = np.array([[[250, 0, 0], [0, 250, 0]], [[0, 0, 250], [250, 250, 250]]], np.uint8)
    image = Image.fromarray(corners).resize((2400, 2400), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.jpg", exif=exif)
    image.resize((240, 240), Image.Resampling.NEAREST).save(tmp_path / "b.jpg", exif=exif)
    large, small = decode(tmp_path / "a.jpg", 8).astype(int), decode(tmp_path / "b.jpg", 8).astype(int)
    assert np.abs(large - small).max() < 30


def test_the_canvas_of_an_animation_is_checked_before_it_is_made() -> None:
    tiny = animated_webp(6300)
    assert len(tiny) < 200
    with pytest.raises(BadImageError, match="6300x6300 pixels, above the limit of 1000000"):
        decode(io.BytesIO(tiny), 32, pixel_limit=1_000_000)
    assert decoding_bytes(io.BytesIO(tiny), 32) > 600_000_000
    assert decode(io.BytesIO(animated_webp(10)), 8).shape == (3, 8, 8)
    with pytest.raises(BadImageError, match="tiles of 4294967296 pixels"):
        decode(io.BytesIO(tiled_tiff(65536)), 32)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_decoding_takes_no_more_memory_than_foretold() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile_images"], cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    measured = [line.split(": ") for line in done.stdout.splitlines()]
    assert len(measured) > 12
    for name, said in measured:
        if "limit" in said:
            assert name == "tiff tile"
            continue
        taken, foretold = map(int, said.split())
        notes = 64 << 20 if name == "png notes" else 0  # Pillow's own limit for them; the service has room for it
        assert taken <= foretold + notes, f"{name}: {taken >> 20} MB, foretold {foretold >> 20} MB"
