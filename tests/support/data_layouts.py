"""Small files in the public layouts of the data sets, for tests."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_image(path: Path, seed: int, side: int = 8) -> np.ndarray:
    """A lossless image of noise; returns its pixels, height x width x 3."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = pixels(seed, side, side, 3)
    Image.fromarray(noise).save(path)
    return noise


def write_folder(root: Path, counts: dict[str, int], side: int = 8) -> None:
    """``root/<class name>/0.png`` and so on."""
    for label, (name, count) in enumerate(counts.items()):
        for i in range(count):
            write_image(root / name / f"{i}.png", 1000 * label + i, side)


def python2_string(raw: bytes) -> bytes:
    """BINSTRING: how Python 2 stores str, and the only opcode that Python 3 never writes."""
    return b"T" + struct.pack("<i", len(raw)) + raw


def python2_array(array: np.ndarray) -> bytes:
    """The opcodes with which Python 2 and numpy 1 wrote an array, protocol 2."""
    shape = b"".join(b"J" + struct.pack("<i", side) for side in array.shape)
    kind = array.dtype.str[1:].encode()
    dtype = b"cnumpy\ndtype\n(" + python2_string(kind) + b"K\x00K\x01tR(K\x03" + python2_string(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + python2_string(b"b") + b"tR"
    return start + b"(K\x01(" + shape + b"t" + dtype + b"\x89" + python2_string(array.tobytes()) + b"tb"


def python2_dict(entries: dict[str, bytes]) -> bytes:
    """A protocol-2 pickle of a dictionary whose values are already opcodes."""
    items = b"".join(python2_string(key.encode()) + value for key, value in entries.items())
    return b"\x80\x02}(" + items + b"u."


def write_cifar100(root: Path, n_classes: int = 3, *, python2: bool = False) -> np.ndarray:
    """A CIFAR-100 of two train and one test image per class; returns the train pixels."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = [f"class {label}" for label in range(n_classes)]
    arrays = {}
    for split, count in (("train", 2 * n_classes), ("test", n_classes)):
        arrays[split] = pixels(count, count, 3072)
        labels = [i % n_classes for i in range(count)]
        if python2:
            listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
            raw = python2_dict({"data": python2_array(arrays[split]), "fine_labels": listed})
        else:
            raw = pickle.dumps({"data": arrays[split], "fine_labels": labels}, protocol=2)
        (folder / split).write_bytes(raw)
    if python2:
        listed = b"](" + b"".join(python2_string(name.encode()) for name in names) + b"e"
        raw = python2_dict({"fine_label_names": listed})
    else:
        raw = pickle.dumps({b"fine_label_names": [name.encode() for name in names]}, protocol=2)
    (folder / "meta").write_bytes(raw)
    return arrays["train"]


MINI_LISTS = {
    "train": [f"n{i:02d}" for i in range(64)],
    "val": [f"n{i:02d}" for i in range(64, 80)],
    "test": [f"n{i:02d}" for i in range(80, 100)],
}


def mini_image(wnid: str, i: int) -> np.ndarray:
    """One flat 84x84 image: red says the class, green says which image of it."""
    image = np.zeros((84, 84, 3), dtype=np.uint8)
    image[..., 0], image[..., 1] = int(wnid[1:]), i
    return image


def write_mini_pickles(folder: Path, per_class: int = 6) -> None:
    """``mini-imagenet-cache-*.pkl``, with classes in reverse order and images interleaved."""
    folder.mkdir(parents=True)
    for name, wnids in MINI_LISTS.items():
        array = np.stack([mini_image(wnid, i) for i in range(per_class) for wnid in wnids])
        classes = {wnid: [i * len(wnids) + k for i in range(per_class)] for k, wnid in reversed(list(enumerate(wnids)))}
        content = {"image_data": array, "class_dict": classes}
        (folder / f"mini-imagenet-cache-{name}.pkl").write_bytes(pickle.dumps(content, protocol=2))


def write_mini_lists(folder: Path, per_class: int = 6) -> None:
    """``{train,val,test}.csv`` with ``images/``."""
    (folder / "images").mkdir(parents=True)
    for name, wnids in MINI_LISTS.items():
        lines = ["filename,label"]
        for wnid in wnids:
            for i in range(per_class):
                Image.fromarray(mini_image(wnid, i)).save(folder / "images" / f"{wnid}{i:08d}.png")
                lines.append(f"{wnid}{i:08d}.png,{wnid}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def write_mini_folders(folder: Path, train: int = 5, val: int = 1) -> None:
    """``train/<wnid>/`` and ``val/<wnid>/``."""
    for wnid in (wnid for wnids in MINI_LISTS.values() for wnid in wnids):
        for i in range(train + val):
            target = folder / ("train" if i < train else "val") / wnid / f"{wnid}_{i}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mini_image(wnid, i)).save(target)


def write_core50(root: Path, sessions: tuple[int, ...] = (1, 3), frames: int = 2) -> list[str]:
    """``core50_128x128``: red says the object, green the session, blue the frame; returns the names."""
    names = []
    for session in sessions:
        for thing in range(1, 51):
            for frame in range(frames):
                name = f"s{session}/o{thing}/C_{session:02d}_{thing:02d}_{frame:03d}.png"
                target = root / "core50_128x128" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (128, 128), (thing, session, frame)).save(target)
                names.append(name)
    return names


def write_core50_lists(root: Path, names: list[str], test_session: int, relabel: Callable[[int], int] = int) -> None:
    """The three official pickles: scenario ni, one run, one batch per session, the test batch last."""
    sessions = sorted({int(name.split("/")[0][1:]) for name in names}, key=lambda s: (s == test_session, s))
    lookup = [[i for i, name in enumerate(names) if name.startswith(f"s{s}/")] for s in sessions]
    labels = [[relabel(int(names[i].split("/")[1][1:]) - 1) for i in batch] for batch in lookup]
    for file, content in (("paths", names), ("LUP", {"ni": [lookup]}), ("labels", {"ni": [labels]})):
        (root / f"{file}.pkl").write_bytes(pickle.dumps(content, protocol=2))
