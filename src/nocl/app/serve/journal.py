"""A journal of what was learned: statistics, never images, on disk before anyone is told.

The file starts with a line of JSON naming the model it belongs to. Then come frames: a mark, the length and CRC-32
of what follows, a sequence number, and the statistics of one group of requests as safetensors. A frame
that was being written when the process died ends the file and is cut off; damage before the last frame is an error,
because acknowledged learning would be lost.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as tensor_bytes

from nocl.app.classifier import Classifier, label_of
from nocl.plumbing.files import DamagedFileError, sync_folder
from nocl.plumbing.types import JSON

_MARK = b"NOCLFRAM"
_HEAD = struct.Struct("<8sIIQ")  # mark, length, CRC of sequence and payload, sequence
_LIMIT = 1 << 30  # bytes of one frame


class Frame(NamedTuple):
    """One group of learnings."""

    sequence: int
    payload: bytes
    end: int  # offset of the byte after it


class Journal:
    """Appends frames; each is on disk when ``append`` returns."""

    def __init__(self, path: Path, history: Sequence[str]) -> None:
        """Open or create the journal of a model whose history has these ids, the last of them newest."""
        self.path = path
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115
        self.frames: list[Frame] = []
        try:
            content = path.read_bytes()
            if b"\n" not in content and _MARK not in content:  # empty, or killed while it was being started
                self.restart(history[-1])
                return
            start = _check_owner(path, content, history)
            self.frames = list(_frames(path, content, start))
            self.size = self.frames[-1].end if self.frames else start
            self._file.truncate(self.size)
            self._file.seek(self.size)
        except BaseException:
            self._file.close()
            raise

    def append(self, sequence: int, payload: bytes) -> None:
        """Write one frame and flush it to disk; on failure the file is as before."""
        checksum = zlib.crc32(payload, sequence & 0xFFFFFFFF)
        frame = _HEAD.pack(_MARK, len(payload), checksum, sequence) + payload
        try:
            written = 0
            while written < len(frame):
                written += self._file.write(frame[written:]) or 0
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self.size)
            self._file.seek(self.size)
            raise
        self.size += len(frame)

    def restart(self, model: str) -> None:
        """Empty the journal: everything in it is in the model file."""
        line = json.dumps({"kind": "nocl journal", "format": 1, "model": model}).encode() + b"\n"
        self._file.seek(0)
        self._file.truncate(0)
        self._file.write(line)
        os.fsync(self._file.fileno())
        sync_folder(self.path.parent)
        self.size, self.frames = len(line), []

    def close(self) -> None:
        """Close the file; it stays where it is."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file: everything in it is in the model file."""
        self.close()
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)


def pack(part: Classifier) -> bytes:
    """The statistics of a classifier made by ``apart``, with names and counts of its classes.

    Of a tensor of zeros, such as the covariance of a single image, only the shape is written.
    """
    learner = part.learner_
    left_out = learner.network_state_names() | {"_extra_state"}
    tensors = {name: tensor for name, tensor in learner.state_dict().items() if name not in left_out}
    zeros = {name: list(tensor.shape) for name, tensor in tensors.items() if not bool(tensor.any())}
    about = {"counts": json.dumps(part.counts_), "zeros": json.dumps(zeros)}
    return tensor_bytes(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if name not in zeros}, metadata=about
    )


def unpack(payload: bytes, empty: Classifier) -> Classifier:
    """What ``pack`` was given, on a copy of an empty classifier made by ``apart``."""
    part = empty.copy()
    learner = part.learner_
    length = int.from_bytes(payload[:8], "little")
    about = json.loads(payload[8 : 8 + length])["__metadata__"]
    counts: dict[str, int] = json.loads(about["counts"])
    shapes: dict[str, list[int]] = json.loads(about["zeros"])
    types = {name: tensor.dtype for name, tensor in learner.state_dict().items()}
    zeros = {name: torch.zeros(shape, dtype=types[name]) for name, shape in shapes.items()}
    learner.load_state_dict(tensors_from(payload) | zeros, strict=False)  # the network is the model's own
    part._names = {label_of(name): name for name in counts}
    part._counts.update(counts)
    return part


def _check_owner(path: Path, content: bytes, history: Sequence[str]) -> int:
    end = content.find(b"\n") + 1
    try:
        owner: JSON = json.loads(content[:end])
    except ValueError:
        owner = None
    if not isinstance(owner, dict) or (owner.get("kind"), owner.get("format")) != ("nocl journal", 1):
        raise DamagedFileError(f"{path} is not a journal that this nocl can read; move it away")
    if owner.get("model") not in history:
        raise DamagedFileError(
            f"{path} belongs to another model or an older copy of this one; put back the model it was written "
            "beside, or move the journal away to give up what it holds"
        )
    return end


def _frames(path: Path, content: bytes, start: int) -> Iterator[Frame]:
    while start < len(content):
        frame = _frame_at(content, start)
        if frame is None:
            if _any_frame_after(content, start + 1):
                raise DamagedFileError(
                    f"{path} is damaged at byte {start}, before its last frame: acknowledged learning would be "
                    "lost; restore the file from a copy, or move it away to give up what it holds"
                )
            return
        yield frame
        start = frame.end


def _frame_at(content: bytes, start: int) -> Frame | None:
    if start + _HEAD.size > len(content):
        return None
    mark, length, checksum, sequence = _HEAD.unpack_from(content, start)
    end = start + _HEAD.size + length
    if mark != _MARK or length > _LIMIT or end > len(content):
        return None
    payload = content[start + _HEAD.size : end]
    return Frame(sequence, payload, end) if zlib.crc32(payload, sequence & 0xFFFFFFFF) == checksum else None


def _any_frame_after(content: bytes, start: int) -> bool:
    while (start := content.find(_MARK, start)) >= 0:
        if _frame_at(content, start) is not None:
            return True
        start += 1
    return False
