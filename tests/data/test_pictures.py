"""Pictures as users hand them over: every kind is read, left as it was, or refused by its position and reason."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nocl.data.decode import BadImageError, decode, to_pixels
from nocl.data.pictures import batch_of
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
