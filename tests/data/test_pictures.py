"""Pictures as users hand them over: every kind is read, left as it was, or refused by its position and reason."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from nocl.data.decode import decode
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
