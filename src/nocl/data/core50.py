"""CORe50 (Lomonaco and Maltoni 2017): 50 household objects, 11 recording sessions, frames of 128x128.

Read from ``root/core50_128x128/s<session>/o<object>/C_<ss>_<oo>_<fff>.png``. Recording sessions 3, 7 and 10 are the
test set, as its authors set it. Where their ``paths.pkl``, ``LUP.pkl`` and ``labels.pkl`` lie beside (or in) that
folder, frames and split come from those (scenario ``ni``, run 0, which has every frame once). Classes are numbered by
object in both cases: ``labels.pkl`` uses other numbers in some scenarios and runs, so it is only checked that it
distinguishes the same objects.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nocl.data.decode import decode_files
from nocl.data.images import Dataset, ImageSet, MissingDataError
from nocl.data.pickles import read_pickle
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.types import JSON

SIZE = 128
TEST_SESSIONS = (3, 7, 10)
CATEGORIES = (
    "plug adapter", "mobile phone", "scissors", "light bulb", "can",
    "glass", "ball", "marker", "cup", "remote control",
)  # fmt: skip
_PER_CATEGORY = 5
_FOLDER = "core50_128x128"
_OFFICIAL = ("paths.pkl", "LUP.pkl", "labels.pkl")
_FRAME = re.compile(r"s(\d+)/o(\d+)/C_(\d+)_(\d+)_(\d+)\.png")


class _Frame(NamedTuple):
    name: str  # relative to the folder
    label: int  # object, from 0
    number: int  # within its film
    is_test: bool


def core50(*, root: Path, labels: Literal["object", "category"] = "object", every: int = 1) -> Dataset:
    """CORe50 with its 50 objects (or 10 categories) as classes, taking every n-th frame of each film."""
    if labels not in ("object", "category"):
        raise ValueError(f"labels must be 'object' (50 classes) or 'category' (10), not {labels!r}")
    if every < 1:
        raise ValueError(f"every must be 1 (all frames) or more, not {every}")
    folder = root / _FOLDER
    if not folder.is_dir():
        raise MissingDataError(
            f"CORe50: no folder {folder}; unpack core50_128x128.zip there (docs/data.md says from where), "
            f"or set --root (NOCL_DATA) to the folder that holds {_FOLDER}/"
        )
    beside = next((place for place in (folder, root) if all((place / f).is_file() for f in _OFFICIAL)), None)
    frames = _by_name(folder) if beside is None else _by_official_lists(folder, beside)
    frames = [frame for frame in frames if frame.number % every == 0]
    split = "recording sessions" if beside is None else "official lists"
    options: dict[str, JSON] = {"labels": labels, "every": every, "split": split}
    return _dataset(folder, frames, labels == "category", options)


def _by_name(folder: Path) -> list[_Frame]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("s*/o*/*.png"))
    if not names:
        raise MissingDataError(f"{folder}: no frames; expected s1..s11/o1..o50/C_ss_oo_fff.png")
    return _numbered([(name, None) for name in names], folder)


def _by_official_lists(folder: Path, beside: Path) -> list[_Frame]:
    """Frames in the order of ``paths.pkl``; the last batch of scenario ni, run 0, is the test set."""
    paths, lookup, labels = (read_pickle(beside / name) for name in _OFFICIAL)
    try:
        positions, labels = _run(lookup), _run(labels)
        listed = [
            (position, int(label), batch == len(positions) - 1)
            for batch, (rows, numbers) in enumerate(zip(positions, labels, strict=True))
            for position, label in zip(rows, numbers, strict=True)
        ]
        entries = [(str(paths[position]), label, is_test) for position, label, is_test in sorted(listed)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{beside}: {', '.join(_OFFICIAL)} do not fit together ({error!r}); get all three again, or move "
            "them away to split by recording session"
        ) from error
    if len({name for name, _, _ in entries}) != len(entries):
        raise DamagedFileError(f"{beside}: LUP.pkl lists a frame twice; get the three lists again")
    frames = _numbered([(name, is_test) for name, _, is_test in entries], folder)
    pairs = {(frame.label, label) for frame, (_, label, _) in zip(frames, entries, strict=True)}
    if not len(pairs) == len({thing for thing, _ in pairs}) == len({label for _, label in pairs}):
        raise DamagedFileError(f"{beside}: labels.pkl does not give each object a label of its own; get it again")
    absent = [frame.name for frame in frames if not (folder / frame.name).is_file()]
    if absent:
        raise MissingDataError(f"{folder}: {len(absent)} of {len(frames)} listed frames absent; first: {absent[0]}")
    return frames


def _run(content: Any) -> Sequence[Sequence[int]]:
    batches: Sequence[Sequence[int]] = content["ni"][0]
    return batches


def _numbered(entries: Sequence[tuple[str, bool | None]], folder: Path) -> list[_Frame]:
    """Frames with the numbers in their names; without a list, recording sessions decide the split."""
    frames = []
    for name, is_test in entries:
        match = _FRAME.fullmatch(name)
        if match is None:
            raise DamagedFileError(f"{folder / name}: CORe50 frames are named s<s>/o<o>/C_ss_oo_fff.png")
        session, thing, named_session, named_thing, number = (int(group) for group in match.groups())
        if (session, thing) != (named_session, named_thing) or not 1 <= thing <= 50:
            raise DamagedFileError(f"{folder / name}: session and object must agree with the folders; 50 objects")
        test = session in TEST_SESSIONS if is_test is None else is_test
        frames.append(_Frame(name, thing - 1, number, test))
    return frames


def _dataset(folder: Path, frames: Sequence[_Frame], by_category: bool, options: dict[str, JSON]) -> Dataset:
    objects = np.array([frame.label for frame in frames], dtype=np.int64)
    if len(frames) == 0:
        raise ValueError("no frame is left; every must be smaller")
    numbers = objects // _PER_CATEGORY if by_category else objects
    names = CATEGORIES if by_category else [f"{CATEGORIES[i // 5]} {i % 5 + 1}" for i in range(50)]
    is_test = np.array([frame.is_test for frame in frames])
    for split, keep in (("train", ~is_test), ("test", is_test)):
        lacking = sorted(set(range(len(names))) - set(numbers[keep].tolist()))
        if lacking:
            raise MissingDataError(f"{folder}: no {split} frames of {names[lacking[0]]!r} and {len(lacking) - 1} more")
    files = [folder / frame.name for frame in frames]
    images = decode_files("core50", folder, files, size=SIZE, fit="squash").images
    rows = np.arange(len(frames))
    train, test = (ImageSet(images, numbers[keep], rows[keep]) for keep in (~is_test, is_test))
    return Dataset("core50", train, test, tuple(names), options)
