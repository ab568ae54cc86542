"""The embedded data set ``glyphs``: 100 classes of small colour images, made in memory from a seed.

A class is a character (`nocl.data.glyph_faces`). Each image is one scene, all of it drawn at random: a
background with a gradient, stripes and soft patches; strokes and a ring as clutter behind; the character in
one of its 12 to 21 faces, under an affine and a perspective map, light on dark or dark on light; one thin
stroke across it; then blur and noise.

Every class of every split has a generator of its own, seeded by (seed, split, character): training and test
images come from different seeds, and the images of a class do not depend on how many classes are asked for.
The same seed gives the same bits on one machine; another version of Pillow, torch or the fonts may move
single pixels, which ``Dataset.fingerprint`` shows. ``python -m nocl.data.glyphs sheet.png`` draws samples
of every class.

Letters: B images, S side of the image. Points are in [-1, 1], x to the right and y down.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Generator, Tensor
from torch.nn import functional as F

from nocl.data.glyph_faces import CHARACTERS, outline, outlines
from nocl.data.images import Dataset, ImageSet
from nocl.plumbing.files import write_atomically
from nocl.plumbing.seeding import generator

SIDES = (16, 256)
STROKES_BEHIND = 3
RINGS_BEHIND = 1


def glyphs(
    *,
    seed: int = 0,
    train_per_class: int = 40,
    test_per_class: int = 20,
    size: int = 32,
    n_classes: int = len(CHARACTERS),
) -> Dataset:
    """The data set of this seed; with fewer classes, the first ones.

    >>> few = glyphs(train_per_class=3, test_per_class=2, n_classes=5)
    >>> few.train.images.shape, few.class_names
    ((15, 3, 32, 32), ('A', 'B', 'C', 'K', 'M'))
    """
    _check("n_classes", n_classes, 2, len(CHARACTERS))
    _check("size", size, *SIDES)
    _check("train_per_class", train_per_class, 1, 100_000)
    _check("test_per_class", test_per_class, 1, 100_000)
    characters = CHARACTERS[:n_classes]
    return Dataset(
        name="glyphs",
        train=_split(characters, "train", train_per_class, size, seed),
        test=_split(characters, "test", test_per_class, size, seed),
        class_names=tuple(characters),
        options={
            "seed": seed,
            "train_per_class": train_per_class,
            "test_per_class": test_per_class,
            "size": size,
            "n_classes": n_classes,
        },
    )


def contact_sheet(dataset: Dataset, path: Path, *, samples: int = 3, columns: int = 10) -> None:
    """Write a PNG with a cell per class: its character, drawn plainly, then its first training images."""
    side, gap = dataset.image_size, 4
    width, height = side * (samples + 1) + gap, side + gap
    rows = math.ceil(dataset.n_classes / columns)
    sheet = np.full((rows * height + gap, columns * width + gap, 3), 255, np.uint8)
    for label, name in enumerate(dataset.class_names):
        plain = 255 - np.pad(outline(name, "DejaVuSans", side - 12), 6)
        images = dataset.train.where([label]).take(range(samples)).x.numpy()
        tiles = [np.repeat(plain[:, :, None], 3, axis=2), *images.transpose(0, 2, 3, 1)]
        top, left = gap + label // columns * height, gap + label % columns * width
        sheet[top : top + side, left : left + side * len(tiles)] = np.concatenate(tiles, axis=1)
    picture = Image.fromarray(sheet).quantize(256)  # noise does not compress: a palette keeps the file small
    write_atomically(path, lambda file: picture.save(file, format="PNG", optimize=True))


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"glyphs: {name} is {value}; give a whole number from {least} to {most}")


def _split(characters: str, split: str, per_class: int, size: int, seed: int) -> ImageSet:
    images = [_draw(c, per_class, size, generator(seed, "glyphs", split, c)) for c in characters]
    return ImageSet.of(np.concatenate(images), np.repeat(np.arange(len(characters)), per_class))


def _draw(character: str, count: int, size: int, g: Generator) -> NDArray[np.uint8]:
    """Images ``uint8 [count, 3, size, size]`` of one character."""
    points = _points(size)  # [S, S, 2]
    light, dark = _uniform(g, 0.5, 1.0, count, 3), _uniform(g, 0.0, 0.5, count, 3)
    swap = torch.rand(count, 1, generator=g) < 0.5
    ground, ink = torch.where(swap, light, dark), torch.where(swap, dark, light)

    x = _background(ground, points, g)  # [B, 3, S, S]
    for _ in range(STROKES_BEHIND):
        x = _paint(x, _stroke(points, count, 0.02, 0.10, g), _uniform(g, 0.0, 1.0, count, 3))
    for _ in range(RINGS_BEHIND):
        x = _paint(x, _ring(points, count, g), _uniform(g, 0.0, 1.0, count, 3))
    x = _paint(x, _warped(character, count, size, g), ink)
    x = _paint(x, _stroke(points, count, 0.01, 0.04, g), _uniform(g, 0.0, 1.0, count, 3))
    x = _blur(x, _uniform(g, 0.1, 0.8, count))
    x = x + _uniform(g, 0.0, 0.08, count, 1, 1, 1) * torch.randn(x.shape, generator=g)
    return np.asarray((x.clamp(0, 1) * 255).round().to(torch.uint8).numpy())


def _warped(character: str, count: int, size: int, g: Generator) -> Tensor:
    """Coverage ``[B, S, S]`` of the character in random faces, mapped at twice the size and then halved."""
    faces = torch.from_numpy(outlines(character, 2 * size)).float() / 255  # [F, 2S, 2S]
    chosen = faces[torch.randint(len(faces), (count,), generator=g), None]
    where = _homography(_points(2 * size), count, g)
    return F.avg_pool2d(F.grid_sample(chosen, where, align_corners=False), 2)[:, 0]


def _homography(points: Tensor, count: int, g: Generator) -> Tensor:
    """Where in the outline each point of the image lies, ``[B, S, S, 2]``."""
    scale = _uniform(g, 0.6, 0.9, count, 1)
    shift = _uniform(g, -1.0, 1.0, count, 2) * (1 - scale)
    tilt = _uniform(g, -0.2, 0.2, count, 2)
    angle, shear = _uniform(g, -0.35, 0.35, count), _uniform(g, -0.2, 0.2, count)
    stretch = _uniform(g, -0.15, 0.15, count).exp()

    moved = points - shift[:, None, None]
    moved = moved / (1 + torch.einsum("bhwd,bd->bhw", moved, tilt))[..., None]
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, sin], 1), torch.stack([-sin, cos], 1)], 1)  # [B, 2, 2]
    u, v = torch.einsum("bij,bhwj->bhwi", turn, moved).unbind(-1)
    u = (u + shear[:, None, None] * v) * stretch[:, None, None]
    return torch.stack([u, v / stretch[:, None, None]], -1) / scale[:, None, None]


def _background(ground: Tensor, points: Tensor, g: Generator) -> Tensor:
    """A colour per image with a gradient, stripes and soft patches on it, ``[B, 3, S, S]``."""
    count, size = len(ground), len(points)
    slope = _uniform(g, -0.2, 0.2, count, 3, 2)
    wave = _uniform(g, -8.0, 8.0, count, 2)
    phase, height = _uniform(g, 0.0, 2 * math.pi, count, 1, 1), _uniform(g, 0.0, 0.10, count, 1, 1)
    patches = F.interpolate(_uniform(g, -0.15, 0.15, count, 3, 5, 5), (size, size), mode="bilinear", align_corners=True)
    stripes = height * (torch.einsum("hwd,bd->bhw", points, wave) + phase).sin()
    return ground[:, :, None, None] + torch.einsum("hwd,bcd->bchw", points, slope) + stripes[:, None] + patches


def _stroke(points: Tensor, count: int, thin: float, thick: float, g: Generator) -> Tensor:
    """Coverage ``[B, S, S]`` of a straight stroke between two random points."""
    start, end = _uniform(g, -1.1, 1.1, count, 2), _uniform(g, -1.1, 1.1, count, 2)
    along = end - start
    offset = points - start[:, None, None]  # [B, S, S, 2]
    part = torch.einsum("bhwd,bd->bhw", offset, along) / along.square().sum(1).clamp_min(1e-6)[:, None, None]
    away = offset - part.clamp(0, 1)[..., None] * along[:, None, None]
    return _soft(away.norm(dim=-1), _uniform(g, thin, thick, count, 1, 1), len(points))


def _ring(points: Tensor, count: int, g: Generator) -> Tensor:
    """Coverage ``[B, S, S]`` of a circle's line."""
    centre, radius = _uniform(g, -1.0, 1.0, count, 2), _uniform(g, 0.15, 0.7, count, 1, 1)
    away = (points - centre[:, None, None]).norm(dim=-1) - radius
    return _soft(away.abs(), _uniform(g, 0.02, 0.10, count, 1, 1), len(points))


def _soft(distance: Tensor, width: Tensor, size: int) -> Tensor:
    """Coverage 1 within ``width``, falling to 0 over one pixel."""
    return ((width - distance) * size / 2 + 0.5).clamp(0, 1)


def _paint(x: Tensor, coverage: Tensor, colour: Tensor) -> Tensor:
    return torch.lerp(x, colour[:, :, None, None].expand_as(x), coverage[:, None])


def _blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian of five taps, one width (in pixels) per image, by rows and then by columns."""
    taps = torch.arange(-2, 3) / sigma[:, None]
    weights = torch.softmax(-taps.square() / 2, dim=1)[:, :, None, None, None]  # [B, 5, 1, 1, 1]
    size = x.shape[-1]
    padded = F.pad(x, (2, 2, 2, 2), mode="replicate")
    rows = sum((weights[:, k] * padded[..., k : k + size] for k in range(5)), torch.zeros(()))
    return sum((weights[:, k] * rows[..., k : k + size, :] for k in range(5)), torch.zeros(()))


def _points(size: int) -> Tensor:
    """Pixel centres ``[S, S, 2]``."""
    line = (torch.arange(size) + 0.5) / size * 2 - 1
    return torch.stack([line.expand(size, size), line[:, None].expand(size, size)], -1)


def _uniform(g: Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=g)


def main() -> None:
    """Write the contact sheet of one seed."""
    parser = argparse.ArgumentParser(prog="python -m nocl.data.glyphs", description=main.__doc__)
    parser.add_argument("path", type=Path, help="the PNG to write")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    contact_sheet(glyphs(seed=given.seed, train_per_class=3, test_per_class=1), given.path)


if __name__ == "__main__":
    main()
