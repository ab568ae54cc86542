"""The embedded data set: every character is there, no two are alike, a seed decides all, raw pixels fail."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from nocl.data.glyph_faces import CHARACTERS, LATIN_FACES, UNICODE_FACES, faces_of, outline, outlines
from nocl.data.glyphs import contact_sheet, glyphs
from nocl.data.images import Dataset

SIDE = 24
NOT_A_CHARACTER = "\uffff"  # Unicode promises that no font has it: it draws the face's box for what is missing


@pytest.fixture(scope="module")
def few() -> Dataset:
    return glyphs(train_per_class=4, test_per_class=3, n_classes=6)


def test_there_are_a_hundred_characters_each_in_at_least_twelve_faces() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 100
    assert min(len(faces_of(character)) for character in CHARACTERS) >= 12
    assert {face for character in CHARACTERS for face in faces_of(character)} == {
        *UNICODE_FACES,
        *LATIN_FACES,
    }


def test_no_face_draws_the_box_of_a_missing_character() -> None:
    boxes = {face: outline(NOT_A_CHARACTER, face, SIDE) for face in UNICODE_FACES}
    for character in CHARACTERS:
        for face, drawn in zip(faces_of(character), outlines(character, SIDE), strict=True):
            assert drawn.max() > 128, (character, face)
            assert face in LATIN_FACES or not np.array_equal(drawn, boxes[face]), (character, face)


def test_no_two_characters_look_alike_in_any_two_faces_even_turned_or_mirrored() -> None:
    alike = _similarity([outlines(character, SIDE - 4) for character in CHARACTERS])
    alike.fill_diagonal_(-1)
    worst = divmod(int(alike.argmax()), len(CHARACTERS))
    assert alike.max() < 0.86, [CHARACTERS[i] for i in worst]


def test_the_measure_of_likeness_finds_a_near_copy_and_a_mirrored_one() -> None:
    alike = _similarity([outlines(character, SIDE - 4) for character in "OoRЯA"])
    assert alike[0, 1] > 0.95
    assert alike[2, 3] > 0.9
    assert alike[0, 4] < 0.7


def test_images_labels_and_names_agree(few: Dataset) -> None:
    assert few.train.images.shape == (24, 3, 32, 32)
    assert few.test.images.shape == (18, 3, 32, 32)
    assert few.train.labels.tolist() == [label for label in range(6) for _ in range(4)]
    assert few.class_names == tuple(CHARACTERS[:6])
    assert few.options == {"seed": 0, "train_per_class": 4, "test_per_class": 3, "size": 32, "n_classes": 6}
    assert glyphs(train_per_class=1, test_per_class=1, n_classes=2, size=48).image_size == 48


def test_a_seed_decides_every_pixel_and_leaves_the_global_generator_alone(few: Dataset) -> None:
    before = torch.random.get_rng_state()
    again = glyphs(**few.options)  # type: ignore[arg-type]
    other = glyphs(**{**few.options, "seed": 1})  # type: ignore[arg-type]
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.fingerprint == few.fingerprint
    assert other.fingerprint != few.fingerprint


def test_a_class_does_not_depend_on_how_many_there_are(few: Dataset) -> None:
    fewer = glyphs(train_per_class=4, test_per_class=3, n_classes=2)
    assert np.array_equal(fewer.train.images, few.train.images[:8])


def test_no_image_comes_twice_in_training_or_test() -> None:
    made = glyphs(train_per_class=6, test_per_class=6, size=16)
    seen = [image.tobytes() for image in (*made.train.images, *made.test.images)]
    assert len(set(seen)) == len(seen) == 1200


def test_nearest_mean_on_raw_pixels_fails() -> None:
    made = glyphs(train_per_class=10, test_per_class=4)
    train, test = (torch.from_numpy(part.images).flatten(1).float() for part in (made.train, made.test))
    means = train.view(100, 10, -1).mean(1)
    nearest = torch.cdist(test, means).argmin(1).numpy()
    assert (nearest == made.test.labels).mean() < 0.10


def test_the_character_is_in_the_image() -> None:
    """Many scenes of a character, averaged without their polarity, correlate with the plain character."""
    made = glyphs(train_per_class=60, test_per_class=1, n_classes=4)
    x = torch.from_numpy(made.train.images).float().mean(1)
    x = (x - x.mean((1, 2), keepdim=True)).abs().view(4, 60, -1).mean(1)
    plain = torch.stack([torch.from_numpy(outlines(c, 24)).float().mean(0) for c in made.class_names])
    plain = F.pad(plain, (4, 4, 4, 4)).flatten(1)
    assert torch.corrcoef(torch.cat([x, plain]))[:4, 4:].argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_classes", 101), ("n_classes", 1), ("size", 8), ("train_per_class", 0), ("test_per_class", -1)],
)
def test_an_impossible_size_is_named_with_its_limits(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}; give a whole number from"):
        glyphs(**{name: value})


def test_the_contact_sheet_shows_the_training_images(few: Dataset, tmp_path: Path) -> None:
    contact_sheet(few, tmp_path / "sheet.png", samples=2, columns=3)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB")).astype(float)
    assert sheet.shape == (2 * 36 + 4, 3 * 100 + 4, 3)
    tile = sheet[40:72, 4 + 32 : 4 + 64]  # first image of the fourth class: second row, first column
    own = few.train.images[12].transpose(1, 2, 0).astype(float)
    assert np.abs(tile - own).mean() < 12  # a palette of 256 colours is not exact


def _similarity(classes: list[np.ndarray]) -> torch.Tensor:
    """Highest correlation of two classes' outlines, over pairs of faces, turns of 15 degrees, mirroring."""
    owner = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor([len(c) for c in classes]))
    ink = F.pad(torch.from_numpy(np.concatenate(classes))[:, None].float(), (2, 2, 2, 2))
    plain, best = _standard(ink), torch.full((len(classes), len(classes)), -1.0)
    for mirror in (1.0, -1.0):
        for angle in (-torch.pi / 12, 0.0, torch.pi / 12):
            cos, sin = np.cos(angle), np.sin(angle)
            turn = torch.tensor([[cos * mirror, -sin, 0], [sin * mirror, cos, 0]], dtype=torch.float32)
            grid = F.affine_grid(turn.expand(len(ink), 2, 3), list(ink.shape), align_corners=False)
            close = plain @ _standard(F.grid_sample(ink, grid, align_corners=False)).T
            by_class = torch.stack([close[:, owner == c].amax(1) for c in range(len(classes))], 1)
            both = torch.stack([by_class[owner == c].amax(0) for c in range(len(classes))])
            best = torch.maximum(best, torch.maximum(both, both.T))
    return best


def _standard(ink: torch.Tensor) -> torch.Tensor:
    soft = F.avg_pool2d(F.avg_pool2d(ink, 2, 1), 2, 1).flatten(1)
    return F.normalize(soft - soft.mean(1, keepdim=True))
