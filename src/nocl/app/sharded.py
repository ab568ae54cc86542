"""Learn with many processes or machines: each learns a part from zero, and the parts are added.

Statistics can be added, so the result is that of one process, up to rounding. The parts do not depend on the number of
workers. A finished part is kept beside the model, named by the model's digest and by names, sizes and times of its
files; an interrupted command therefore continues, and a part whose process dies is learned again. The model file is
written once, at the end.
"""

import json
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from nocl.app import modelfile
from nocl.app.classifier import Classifier
from nocl.app.packing import counts_in, pack, unpack
from nocl.app.sources import Bad, Source
from nocl.data.decode import BadImagesError
from nocl.plumbing.cluster import on_ray
from nocl.plumbing.files import digest, write_atomically
from nocl.plumbing.progress import steps
from nocl.plumbing.workers import Message, Prepare, Say, Work, cores, in_processes

log = logging.getLogger(__name__)
PARTS = 256  # at most: more would use more workers, and more disk and time to add them up
SMALLEST = 256  # samples of a part, below which starting it costs more than learning it


class Learned(NamedTuple):
    """The result of a worker: the statistics of its part, and the files it left out."""

    payload: bytes
    bad: Bad


@dataclass(frozen=True)
class Settings:
    """What a worker needs beside its part. ``model`` is the file of the empty model."""

    model: bytes
    trust: bool
    device: str
    threads: int


def learn_sharded(
    model_file: Path,
    source: Source,
    *,
    workers: int | None = None,
    address: str | None = None,
    skip_bad: bool = False,
    trust: bool = False,
    device: str = "cpu",
    part_size: int | None = None,
    prepare: Prepare | None = None,
) -> tuple[Classifier, Bad]:
    """The model with everything in ``source`` learned, and the files left out; the caller holds the lock and saves.

    ``address`` is that of a Ray cluster, ``local`` for one on this machine, None for processes. ``workers`` are by
    default as many as there are processors. A file that cannot be read is an error unless ``skip_bad``; what is
    finished by then is kept for the next attempt. ``prepare`` is for tests that need a worker to fail.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers}")
    model = Classifier.load(model_file, trust=trust, device=device)
    empty = model.apart()  # refuses a method whose learning is not statistics
    slices = source.slices(part_size or max(SMALLEST, -(-len(source) // PARTS)))
    known = str(modelfile.describe(model_file)["digest"])
    files = [modelfile.parts_folder(model_file) / f"{digest([known, part.identity()])}.part" for part in slices]
    missing = [number for number, file in enumerate(files) if not _is_there(file, skip_bad)]
    log.info("%d of %d parts are there from an earlier attempt", len(slices) - len(missing), len(slices))
    settings = Settings(_file_of(empty), trust, device, _threads(workers, address))
    pieces = [slices[number] for number in missing]
    messages = _start(pieces, prepare or start_worker, settings, workers, address)
    with closing(messages):  # an error ends the workers
        for number, learned in _answers(messages, pieces):
            if learned.bad and not skip_bad:
                raise BadImagesError(learned.bad)
            _write_part(files[missing[number]], learned)
    return model, _merge(model, empty, files, source.shuffled(model.seed).names_in_order())


def start_worker(settings: Settings) -> Work:
    """Load the empty model once; the function that is returned learns one part with a copy of it."""
    torch.set_num_threads(settings.threads)
    with TemporaryDirectory() as folder:
        path = Path(folder, "empty.nocl")
        path.write_bytes(settings.model)
        empty = Classifier.load(path, trust=settings.trust, device=settings.device)

    def learn(part: Source, say: Say) -> Learned:
        model = empty.copy()
        bad = part.teach(model, say)
        return Learned(pack(model), bad)

    return learn


def _threads(workers: int | None, address: str | None) -> int:
    return 1 if address else max(1, torch.get_num_threads() // (workers or cores()))


def _start(
    pieces: Sequence[Source], prepare: Prepare, settings: Settings, workers: int | None, address: str | None
) -> Generator[Message]:
    if not pieces:
        return
    if address is None:
        yield from in_processes(pieces, prepare, settings, workers=workers or cores())
    else:
        yield from on_ray(pieces, prepare, settings, address=address, workers=workers)


def _answers(messages: Iterable[Message], pieces: Sequence[Source]) -> Iterator[tuple[int, Learned]]:
    """The results in the order in which they finish. Progress counts the samples of all workers."""
    told = [0] * len(pieces)
    with steps("learning", sum(map(len, pieces))) as advance:
        for number, value, over in messages:
            now = len(pieces[number]) if over else min(told[number] + value, len(pieces[number]))
            advance(now - told[number])
            told[number] = now
            if over:
                yield number, value


def _write_part(path: Path, learned: Learned) -> None:
    """One line of JSON with the files left out, then the statistics."""
    write_atomically(path, lambda file: file.write(json.dumps(learned.bad).encode() + b"\n" + learned.payload))


def _read_part(path: Path) -> Learned:
    line, _, payload = path.read_bytes().partition(b"\n")
    return Learned(payload, json.loads(line))


def _is_there(path: Path, skip_bad: bool) -> bool:
    if not path.exists():
        return False
    with open(path, "rb") as file:
        return skip_bad or not json.loads(file.readline())


def _merge(model: Classifier, empty: Classifier, files: Sequence[Path], order: Sequence[str]) -> Bad:
    """Add all parts to the model, in their order; its new classes come in ``order``."""
    bad: Bad = {}
    present = {name for file in files for name in counts_in(_read_part(file).payload)}
    model.expect([name for name in order if name in present])
    for file in files:  # read again: all of them at once may be more than the memory holds
        part = _read_part(file)
        bad |= part.bad
        model.take_in(unpack(part.payload, empty))
    return bad


def _file_of(empty: Classifier) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "empty.nocl")
        empty.save(path)
        return path.read_bytes()
