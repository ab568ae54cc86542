"""Recognise pictures with an exported model, without nocl and PyTorch: onnxruntime, numpy and Pillow are enough.

nocl export kitchen.nocl --onnx kitchen.onnx
python examples/onnx_predict.py kitchen.onnx photo.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def prepared(path: str, size: int, short_side: int) -> np.ndarray:
    """The middle of the picture as uint8 [3, size, size]."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    scale = short_side / min(image.size)
    width, height = (max(size, round(scale * side)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/onnx_predict.py MODEL.onnx PICTURE ...")
    session = onnxruntime.InferenceSession(sys.argv[1])
    about = session.get_modelmeta().custom_metadata_map
    names, size, short_side = json.loads(about["classes"]), int(about["size"]), int(about["short_side"])
    batch = np.stack([prepared(path, size, short_side) for path in sys.argv[2:]])
    _, probabilities = session.run(None, {"images": batch})
    for path, row in zip(sys.argv[2:], probabilities):
        print(path, ", ".join(f"{names[i]} {100 * row[i]:.0f} %" for i in row.argsort()[::-1][:3]))


if __name__ == "__main__":
    main()
