"""Pictures as users hand them over: every kind is read, left as it was, or refused by its position and reason."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nocl.data.decode import BadImageError, decode, to_pixels
from nocl.data.pictures import PictureFiles, are_files, batch_of
from tests.support.data_layouts import pixels


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


PNG = encoded(Image.fromarray(pixels(0, 8, 8, 3)))
EXPECTED = pixels(0, 8, 8, 3).transpose(2, 0, 1)


def test_a_large_photograph_of_the_caller_keeps_its_size(tmp_path: Path) -> None:
    coarse = Image.fromarray(pixels(0, 6, 8, 3)).resize((2800, 2100))
    coarse.save(tmp_path / "large.jpg")
    photo = Image.open(tmp_path / "large.jpg")
    got = batch_of(photo, 32)[0].numpy().astype(int)
    assert photo.size == (2800, 2100)
    assert np.asarray(photo).shape == (2100, 2800, 3)
    assert np.abs(got - decode(tmp_path / "large.jpg", 32)).mean() < 2.5


@pytest.mark.parametrize(
    ("empty", "words"),
    [
        (np.zeros((0, 20, 3), np.uint8), r"picture 0 .*\[0, 20, 3\]"),
        (np.zeros((2, 3, 20, 0), np.uint8), r"picture 0 .*\[2, 3, 20, 0\]"),
        (torch.zeros(3, 0, 0, dtype=torch.uint8), r"picture 0 .*\[3, 0, 0\]"),
        (Image.new("RGB", (0, 0)), "picture 0: .*0x0 pixels"),
        (Image.new("L", (0, 7)), "picture 0: .*0x7 pixels"),
        ([EXPECTED, np.zeros((5, 0, 3), np.uint8)], r"picture 1 .*\[5, 0, 3\]"),
        ([PNG, Image.new("RGB", (4, 0))], "picture 1: .*4x0 pixels"),
    ],
)
def test_a_picture_without_pixels_is_refused(empty: Any, words: str) -> None:
    with pytest.raises(BadImageError, match=words):
        batch_of(empty, 8)


def test_no_pictures_at_all_are_an_empty_batch() -> None:
    for nothing in ([], np.zeros((0, 3, 8, 8), np.uint8), np.array([], dtype=object)):
        assert batch_of(nothing, 8).shape == (0, 3, 8, 8)


def cut_short() -> Image.Image:
    whole = encoded(Image.fromarray(pixels(1, 64, 64, 3)), "JPEG")
    return Image.open(io.BytesIO(whole[: len(whole) // 2]))


def closed() -> Image.Image:
    image = Image.fromarray(pixels(0, 8, 8, 3))
    image.close()
    return image


def closed_before_it_was_read(path: Path) -> Image.Image:
    path.write_bytes(PNG)
    with Image.open(path) as image:
        return image


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (cut_short, "truncated"),
        (closed, "closed"),
        (lambda: Image.new("La", (8, 8)), "La"),
        (lambda: Image.new("F", (8, 8)), "no defined white"),
        (lambda: Image.new("F", (2500, 2000)), "no defined white"),
    ],
)
def test_an_opened_picture_that_cannot_be_read_is_named(make: Callable[[], Image.Image], words: str) -> None:
    with pytest.raises(BadImageError, match=f"^picture 1: .*{words}"):
        batch_of([PNG, make()], 8)


def test_a_picture_closed_before_it_was_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match=r"picture 0: .*closed.*load\(\)"):
        batch_of(closed_before_it_was_read(tmp_path / "x.png"), 8)


def test_arrays_of_paths_are_lists_of_paths(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    path = tmp_path / "x.png"
    columns = [np.array([str(path)] * 2), np.array([path, str(path)], dtype=object)]
    for column in columns:
        np.testing.assert_array_equal(batch_of(column, 8).numpy(), [EXPECTED] * 2)
        assert are_files(column)
        np.testing.assert_array_equal(PictureFiles(column, 8, "crop")[np.array([1])], EXPECTED[None])
    np.testing.assert_array_equal(batch_of(np.array(str(path)), 8).numpy(), EXPECTED[None])
    mixed = np.empty(2, dtype=object)
    mixed[:] = [PNG, Image.open(path)]
    np.testing.assert_array_equal(batch_of(mixed, 8).numpy(), [EXPECTED] * 2)
    assert not are_files(mixed)


def test_a_table_of_paths_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"\[2, 1\].*ravel"):
        batch_of(np.array([["a.jpg"], ["b.jpg"]]), 8)
    with pytest.raises(TypeError, match="picture 1 is a float"):
        batch_of(np.array([PNG, float("nan")], dtype=object), 8)


def test_bytes_of_every_kind_are_pictures() -> None:
    for content in (PNG, bytearray(PNG), memoryview(PNG)):
        np.testing.assert_array_equal(batch_of(content, 8).numpy(), EXPECTED[None])
        np.testing.assert_array_equal(batch_of([content, content], 8).numpy(), [EXPECTED] * 2)


def test_an_open_file_is_read_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    written = io.BytesIO()
    written.write(PNG)  # stands at its end, as after image.save(file)
    with open(tmp_path / "x.png", "rb") as file:
        file.seek(5)
        for source, position in ((file, 5), (written, len(PNG))):
            np.testing.assert_array_equal(batch_of(source, 8).numpy(), EXPECTED[None])
            np.testing.assert_array_equal(batch_of([source, source], 8).numpy(), [EXPECTED] * 2)
            assert source.tell() == position
            assert not source.closed


def test_a_stream_that_cannot_seek_is_a_picture(tmp_path: Path) -> None:
    class Stream:
        def read(self) -> bytes:
            return PNG

    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x.png", PNG)
    with zipfile.ZipFile(tmp_path / "x.zip") as archive, archive.open("x.png") as member:
        for source in (Stream(), member):
            np.testing.assert_array_equal(batch_of(source, 8).numpy(), EXPECTED[None])  # type: ignore[arg-type]


def test_files_that_give_no_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    with open(tmp_path / "x.png") as text, pytest.raises(TypeError, match=r"picture 0 .*text.*'rb'"):
        batch_of(text, 8)  # type: ignore[arg-type]
    with open(tmp_path / "y.png", "wb") as written:
        written.write(PNG)
        with pytest.raises(BadImageError, match="picture 0: cannot be read"):
            batch_of(written, 8)
        assert written.tell() == len(PNG)
    shut = io.BytesIO(PNG)
    shut.close()
    with pytest.raises(BadImageError, match=r"picture 1: .*closed"):
        batch_of([PNG, shut], 8)
    with pytest.raises(BadImageError, match="picture 0: not an image"):
        batch_of(io.BytesIO(b"nothing"), 8)


@pytest.mark.parametrize("side", [4, 2100])
def test_32_bit_integers_up_to_255_are_8_bit(side: int) -> None:
    values = np.full((side, side), 200, dtype=np.int32)
    values[: side // 2] = 0
    found = to_pixels(Image.fromarray(values), 4)
    assert found[:, 0, 0].tolist() == [0] * 3
    assert np.abs(found[:, 3, 3].astype(int) - 200).max() <= 2


def test_32_bit_integers_above_255_are_16_bit_everywhere() -> None:
    values = np.full((2100, 2100), 200, dtype=np.int32)  # a strip of it alone would look like 8 bits
    values[-2:] = 25700
    assert to_pixels(Image.fromarray(values), 4)[:, 0].max() <= 1
    assert to_pixels(Image.fromarray(values[-4:, :4]), 4)[0].tolist() == [[1] * 4] * 2 + [[100] * 4] * 2


def signed_tiff(value: int) -> bytes:
    """4x4 grey pixels of 16 bits with a sign, which Pillow opens in mode I."""
    tags = {256: 4, 257: 4, 258: 16, 259: 1, 262: 1, 273: 134, 277: 1, 278: 4, 279: 32}
    rows = [struct.pack("<HHII", tag, 4, 1, number) for tag, number in tags.items()]
    rows.append(struct.pack("<HHII", 339, 4, 1, 2))  # SampleFormat: signed
    head = b"II*\0" + struct.pack("<IH", 8, len(rows)) + b"".join(rows)
    return head.ljust(tags[273], b"\0") + struct.pack("<h", value) * 16


def test_a_dark_16_bit_file_stays_dark(tmp_path: Path) -> None:
    values = np.full((4, 4), 200, dtype=np.uint16)
    for suffix in ("png", "ppm", "tiff"):
        path = tmp_path / f"x.{suffix}"
        Image.fromarray(values).save(path)
        assert decode(path, 4).max() == 1
        assert batch_of(Image.open(path), 4).max() == 1
    assert Image.open(io.BytesIO(signed_tiff(200))).mode == "I"
    assert batch_of(signed_tiff(200), 4).max() == 1
    older = Image.fromarray(values.astype(np.int32))
    older.format = "PNG"  # as Pillow 10 opens a PNG of 16 bits
    assert to_pixels(older, 4).max() == 1
