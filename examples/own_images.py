"""Your own images: teach classes one picture at a time, save, go on, forget. Needs no data and no training.

    python examples/own_images.py

It draws its own pictures; put photographs (paths, PIL images or arrays) in their place.
"""

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from nocl import Classifier


def picture(shape: str, shift: int) -> Image.Image:
    """A drawing that stands for a photograph."""
    image = Image.new("RGB", (64, 64), (235, 230, 220))
    pen, box = ImageDraw.Draw(image), (12 + shift, 14, 50 + shift, 52)
    pen.ellipse(box, fill=(200, 60, 40)) if shape == "ball" else pen.rectangle(box, fill=(40, 90, 180))
    return image


def main() -> None:
    model = Classifier()  # EfficientNet-Lite0 with ImageNet weights: nothing to train
    model.partial_fit([picture("ball", s) for s in (-6, 0, 6)], "ball")
    model.partial_fit(picture("box", 0), "box")  # one picture is enough
    print("predicted:", model.predict([picture("ball", 3), picture("box", 4)]).tolist())

    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "shapes.nocl")
        model = Classifier.load(Path(folder) / "shapes.nocl")
    model.partial_fit([picture("box", 2), picture("box", 5)], "box")  # known: improved, not duplicated
    print("learned:  ", model.counts_)
    print("kept:     ", model.privacy()["kept"])
    print("forgotten:", model.forget("ball").classes_.tolist())


if __name__ == "__main__":
    main()
