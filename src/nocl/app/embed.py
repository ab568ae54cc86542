"""Features of a folder of images, written to one ``.npz`` file of plain arrays: computed once, used by many methods.

    X float32 [n, d]   y int64 [n]   classes, files: text   about: JSON text (network, digest, settings, key of the run)

:func:`nocl.data.vectors.read_vectors` reads it. Rows are appended to a part file batch by batch; an interrupted run
continues after the last whole batch if folder, network and settings are still the same, and starts again otherwise.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nocl import nets
from nocl.app import backbones
from nocl.data.decode import BadImageError, BadImagesError, Fit, file_facts
from nocl.data.folder import class_files
from nocl.data.pictures import batch_of
from nocl.data.vectors import read_vectors
from nocl.learner import NotFittedError
from nocl.nets import Backbone
from nocl.nets.engine import Engine, engine_named
from nocl.plumbing.files import digest, holding, write_atomically, write_json
from nocl.plumbing.progress import steps
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__

KIND = "nocl embeddings"
_AT_ONCE = 32  # images through the network together, and between two writes


@dataclass(frozen=True, eq=False)
class Embedder:
    """A trained network that turns pictures into features."""

    network: Backbone
    engine: Engine
    size: int
    fit: Fit
    stages: tuple[int, ...] | None
    about: dict[str, JSON]

    @classmethod
    def of(
        cls,
        backbone: str = backbones.DEFAULT,
        *,
        size: int | None = None,
        stages: Sequence[int] | None = None,
        engine: str = "auto",
        device: str = "cpu",
    ) -> "Embedder":
        """The backbone of that name (as :class:`~nocl.app.classifier.Classifier` takes it), with its weights."""
        found = backbones.find(backbone)
        network = nets.build(found.network)
        origin = backbones.fill(network, backbone)
        if not origin:
            raise NotFittedError(f"the network {backbone!r} is not trained: take one such as {backbones.DEFAULT!r}")
        if size is not None and size < 1:
            raise ValueError(f"size must be 1 pixel or more, not {size}; without it, the network's own is taken")
        side, chosen = size or found.side, None if stages is None else tuple(stages)
        network.feature_dim(side, chosen)  # refuses a size or a stage that it does not have
        runner = engine_named(engine)
        about: dict[str, JSON] = {
            "kind": KIND, "nocl": __version__, "backbone": Path(backbone).name, **origin, "size": side,
            "fit": found.fit, "stages": None if chosen is None else list(chosen), "engine": runner.name,
        }  # fmt: skip
        return cls(network.eval().to(device), runner, side, found.fit, chosen, about)

    def features(self, images: Tensor) -> NDArray[np.float32]:
        """Features float32 [B, d] of uint8 images of the right size."""
        z = self.engine.features(self.network, images, self.size, self.stages)
        rows: NDArray[np.float32] = z.float().cpu().numpy()
        return rows

    @property
    def dim(self) -> int:
        return self.network.feature_dim(self.size, self.stages)


def embed_folder(
    folder: Path, output: Path, embedder: Embedder, *, skip_bad: bool = False, overwrite: bool = True
) -> dict[str, str]:
    """Write the features of ``folder/<class>/<image>``; returns the files left out with their reasons.

    Without ``skip_bad`` a file that is not an image is an error; features computed before are kept for the next try.
    Without ``overwrite`` a file that exists is an error, unless this folder, network and settings made or began it.
    """
    class_names, files, labels = class_files(folder)
    names = [path.relative_to(folder).as_posix() for path in files]
    with holding(output):
        key = _key(embedder, names, files)
        if not overwrite and output.exists() and key not in (_begun(output), _finished(output)):
            raise FileExistsError(
                f"{output} exists and holds something else: choose another name, or overwrite it with --force"
            )
        bad = _compute(output, embedder, key, files, names, skip_bad)
        good = _finish(output, embedder, key, class_names, names, labels)
    return {name: bad.get(name, "no image") for name, kept in zip(names, good) if not kept}


def _compute(
    output: Path, embedder: Embedder, key: str, files: Sequence[Path], names: Sequence[str], skip_bad: bool
) -> dict[str, str]:
    """Append the rows that are missing to the part file, NaN for a file that is no image; reasons by name."""
    done = _begin(output, key, embedder.dim)
    bad = _read_again(output, embedder, files[:done], names)
    if bad and not skip_bad:
        raise BadImagesError(bad)
    with open(_part(output), "ab") as part, steps("embedding", len(files)) as advance:
        advance(done)
        for start in range(done, len(files), _AT_ONCE):
            rows = np.full((len(files[start : start + _AT_ONCE]), embedder.dim), np.nan, dtype="<f4")
            pictures: dict[int, Tensor] = {}
            for i, path in enumerate(files[start : start + _AT_ONCE]):
                try:
                    pictures[i] = batch_of(path, embedder.size, embedder.fit)
                except BadImageError as error:
                    bad[names[start + i]] = str(error).removeprefix(f"{path}: ")
            if bad and not skip_bad:
                raise BadImagesError(bad)
            if pictures:
                rows[list(pictures)] = embedder.features(torch.cat(list(pictures.values())))
            part.write(rows.tobytes())
            part.flush()
            os.fsync(part.fileno())
            advance(len(rows))
    return bad


def _begin(output: Path, key: str, dim: int) -> int:
    """How many rows of an earlier run can be kept; the part file is cut to them."""
    part = _part(output)
    if _begun(output) != key:
        part.unlink(missing_ok=True)
        write_json(_part_about(output), {"key": key})
    done = part.stat().st_size // (4 * dim) if part.exists() else 0
    with open(part, "ab") as file:
        file.truncate(done * 4 * dim)
    return done


def _read_again(output: Path, embedder: Embedder, files: Sequence[Path], names: Sequence[str]) -> dict[str, str]:
    """Try again the files that an earlier run left out; the reasons of those that still are no images."""
    bad: dict[str, str] = {}
    if not files:
        return bad
    rows = np.memmap(_part(output), "<f4", "r+", shape=(len(files), embedder.dim))
    for row in np.flatnonzero(np.isnan(rows[:, 0])).tolist():
        try:
            rows[row] = embedder.features(batch_of(files[row], embedder.size, embedder.fit))[0]
        except BadImageError as error:
            bad[names[row]] = str(error).removeprefix(f"{files[row]}: ")
    rows.flush()
    return bad


def _finish(
    output: Path,
    embedder: Embedder,
    key: str,
    class_names: Sequence[str],
    names: Sequence[str],
    labels: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Write the whole file and remove the part; which files have a row."""
    rows = np.memmap(_part(output), "<f4", "r", shape=(len(names), embedder.dim))
    good: NDArray[np.bool_] = ~np.isnan(rows[:, 0])
    arrays: dict[str, NDArray[Any]] = {
        "X": rows if good.all() else rows[good], "y": labels[good], "classes": np.array(class_names, dtype=np.str_),
        "files": np.array(names, dtype=np.str_)[good], "about": np.array(json.dumps({**embedder.about, "key": key})),
    }  # fmt: skip
    write_atomically(output, lambda file: np.savez(file, allow_pickle=False, **arrays), held=True)
    _part(output).unlink()
    _part_about(output).unlink()
    return good


def _begun(output: Path) -> JSON:
    """The key of the run that the part file is of."""
    try:
        about = json.loads(_part_about(output).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return about.get("key") if isinstance(about, dict) else None


def _finished(output: Path) -> JSON:
    """The key of the run that wrote the file."""
    try:
        return read_vectors(output).about.get("key")
    except (OSError, ValueError):
        return None


def _key(embedder: Embedder, names: Sequence[str], files: Sequence[Path]) -> str:
    """Hash of all that determines the rows: the network, its settings, and names, sizes and times of the files."""
    listed: list[JSON] = [[name, *file_facts(path)] for name, path in zip(names, files)]
    return digest([embedder.about, listed])


def _part(output: Path) -> Path:
    return output.with_name(f".{output.name}.part")


def _part_about(output: Path) -> Path:
    return output.with_name(f".{output.name}.part.json")
