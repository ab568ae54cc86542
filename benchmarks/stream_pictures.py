"""One picture for each kind of stream: images over time, coloured by class. Writes docs/images/stream-NAME.png.

    python benchmarks/stream_pictures.py

Twenty classes of 100 images and no base session; a dot is an image, a grey line the end of a session.
"""

import argparse
from itertools import accumulate
from pathlib import Path

import matplotlib
import numpy as np

from nocl.arrivals import STREAMS
from nocl.data import Dataset, ImageSet
from nocl.streams import Stream, arrange

matplotlib.use("agg")
from matplotlib import pyplot

CLASSES, PER_CLASS = 20, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    labels = np.arange(CLASSES).repeat(PER_CLASS)
    images = ImageSet.of(np.zeros((len(labels), 3, 1, 1), dtype=np.uint8), labels)
    data = Dataset("labels", images, images, tuple(map(str, range(CLASSES))))
    for name in STREAMS:
        path = args.out / f"stream-{name}.png"
        draw(arrange(data, f"{name}:base=0", seed=args.seed), path)
        print(path)


def draw(stream: Stream, path: Path) -> None:
    """Classes from top to bottom in the order in which they are first met."""
    sessions = [np.array([label for _, y in session for label in y.tolist()]) for session in stream]
    labels = np.concatenate(sessions)
    met = {label: row for row, label in enumerate(dict.fromkeys(labels.tolist()))}
    figure, axis = pyplot.subplots(figsize=(8, 2.4), dpi=100)
    rows = np.array([met[label] for label in labels.tolist()])
    axis.scatter(np.arange(len(labels)), rows, c=rows % 20, cmap="tab20", s=2, marker="s", linewidths=0)
    for end in list(accumulate(map(len, sessions)))[:-1]:
        axis.axvline(end, color="0.6", linewidth=0.8)
    axis.invert_yaxis()
    axis.set(xlabel="images", ylabel="class", xlim=(0, CLASSES * PER_CLASS), yticks=[])
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
