"""The ``.nocl`` model file: one safetensors file with a JSON header, checked before anything in it is used.

The header's one entry, ``nocl``, is a JSON object: kind, format version, method, parameters, class names, counts,
backbone, calibration, history, a privacy statement, and the SHA-256 of everything else in the file. Reading never
unpickles and never imports what a file names: methods and networks must be among those that ship with nocl (or
``timm:``), unless the caller says the file is trusted. Values that would need absurd amounts of memory are
refused. A digest detects damage, not an attack: whoever can write the file can write a matching digest.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nocl.app import backbones
from nocl.app.naming import check_name
from nocl.learner import Learner
from nocl.methods import METHODS, name_of, remake
from nocl.methods._meaning import check_meaning
from nocl.methods._saving import check_trust, check_types, only_trusted
from nocl.nets import BACKBONES, split_side, state_digest
from nocl.plumbing.files import DamagedFileError, write_atomically
from nocl.plumbing.sealed import NoLargerThan, read_sealed, sealed_bytes
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__

KIND = "nocl model"
FORMAT = 1
MAX_CLASSES = 100_000
MAX_SIDE = 1024  # pixels a side
_MAX_NUMBER = 10**9  # of any hyper-parameter; what a file may allocate is limited by its size (NoLargerThan)

Header = dict[str, JSON]
# a function for each old format that turns its header and tensors into the next format's
UPGRADES: dict[int, Callable[[Header, dict[str, Tensor]], tuple[Header, dict[str, Tensor]]]] = {}


def to_bytes(learner: Learner, about: Mapping[str, JSON], *, network: str | None = None) -> bytes:
    """The content of a file with a learner and its description.

    ``network`` is the name of its backbone, to be written with a digest in place of the backbone's weights.
    """
    tensors = learner.state_dict()
    if network is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("network.")}
    header: Header = {
        "kind": KIND,
        "format": FORMAT,
        "nocl": __version__,
        "method": name_of(learner),
        "params": learner.get_params(),
        "base": learner.base_,
        "network": None if network is None else {"name": network, "sha256": state_digest(learner.network)},
        **about,
    }
    return sealed_bytes(tensors, header)


def read(path: Path, *, trust: bool = False, device: str = "cpu") -> tuple[Learner, Header]:
    """The saved learner, and the header.

    ``trust`` allows methods and networks of your own (``module:name``), whose code is then imported and run.
    """
    header, tensors = _checked(path)
    method, params = _method(path, header, trust)
    try:
        with NoLargerThan(tensors), only_trusted(trust):
            learner = remake(method, _renewed(method, params, header))
        tensors = _with_network(
            path, header, learner, tensors
        )  # the installed network is not limited by the file's size
        check_types(path, learner, tensors)
        with NoLargerThan(tensors):
            learner.load_state_dict(tensors)
        check_meaning(path, learner)
        _check_statistics(path, header, learner)
    except DamagedFileError:
        raise
    except (RuntimeError, KeyError, ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise DamagedFileError(f"{path}: what it holds does not fit method {method!r}: {error}") from error
    learner.base_ = header["base"] if isinstance(header["base"], dict) else {}
    return learner.eval().to(device), header


def describe(path: Path) -> Header:
    """The header of a whole, undamaged file, without building the model."""
    return _checked(path)[0]


def _checked(path: Path) -> tuple[Header, dict[str, Tensor]]:
    header, tensors = read_sealed(path, KIND)
    version = header["format"]
    assert isinstance(version, int)
    if version > FORMAT:
        raise DamagedFileError(f"{path} has format {version}, this nocl reads up to {FORMAT}: update nocl")
    while version < FORMAT:
        if version not in UPGRADES:
            raise DamagedFileError(f"{path} has format {version}, which no version of nocl writes")
        header, tensors = UPGRADES[version](header, tensors)
        version += 1
    _check_header(path, header)
    return header, tensors


def _check_header(path: Path, header: Header) -> None:
    names, counts = header.get("classes"), header.get("counts")
    if not isinstance(names, list) or len(names) > MAX_CLASSES:
        raise DamagedFileError(f"{path}: classes must be a list of at most {MAX_CLASSES} names")
    for name in names:
        try:
            check_name(name)
        except (TypeError, ValueError) as error:
            raise DamagedFileError(f"{path}: {error}") from None
    if len(set(map(str, names))) != len(names):
        raise DamagedFileError(f"{path}: a class name occurs twice")
    if not isinstance(counts, list) or len(counts) != len(names) or not all(_is_count(n) for n in counts):
        raise DamagedFileError(f"{path}: counts must be one whole number for each of {len(names)} classes")
    for key in ("params", "base", "calibration", "privacy"):
        if not isinstance(header.get(key), dict):
            raise DamagedFileError(f"{path}: the header has no {key}")
    if not isinstance(header.get("history"), list) or not isinstance(header.get("backbone"), str):
        raise DamagedFileError(f"{path}: the header lacks a history or a backbone")
    if header.get("fit", "crop") not in ("crop", "photo"):
        raise DamagedFileError(f"{path}: pictures are brought to size by {header.get('fit')!r}, which is unknown")


def _renewed(method: str, params: dict[str, JSON], header: Header) -> dict[str, JSON]:
    """Without the defaults of a time when they meant something else: today's take their place."""
    former = METHODS[method].former if method in METHODS else {}
    scoring = header.get("scoring", 1)
    old = {name: values for name, (since, values) in former.items() if isinstance(scoring, int) and scoring < since}
    return {name: value for name, value in params.items() if value not in old.get(name, ())}


def _method(path: Path, header: Header, trust: bool) -> tuple[str, dict[str, JSON]]:
    method, params = header.get("method"), header["params"]
    assert isinstance(params, dict)
    backbone = params.get("backbone")
    if not isinstance(method, str) or not isinstance(backbone, str):
        raise DamagedFileError(f"{path}: the header lacks a method or its network")
    if params.get("weights") is not None:
        raise DamagedFileError(f"{path}: a model file carries its own network and may not name another file")
    plain, enlarged = split_side(backbone)
    if enlarged is not None and not 1 <= enlarged <= MAX_SIDE:
        raise DamagedFileError(f"{path}: the network enlarges images to {enlarged} px, above {MAX_SIDE}")
    named = header["backbone"]
    is_file = isinstance(named, str) and named.endswith(".safetensors")  # whose weights the model file carries
    check_trust(path, method, params if is_file else {**params, "named": named}, trust)
    known = plain in BACKBONES or re.fullmatch(r"timm:[\w.\-]{1,100}|features:\d{1,6}", plain) is not None
    if not known and not trust:
        raise DamagedFileError(
            f"{path} names the network {backbone!r}, which does not ship with nocl: loading would run its code"
        )
    side = params.get("image_size")
    if not _is_count(side) or not 1 <= int(side) <= MAX_SIDE:  # type: ignore[arg-type]
        raise DamagedFileError(f"{path}: image_size must be 1 to {MAX_SIDE}, not {side!r}")
    if not isinstance(params.get("seed", 0), int) or abs(int(params.get("seed", 0))) >= 2**63:  # type: ignore[arg-type]
        raise DamagedFileError(f"{path}: seed must be a whole number, not {params.get('seed')!r}")
    for fault in _faults({name: value for name, value in params.items() if name != "seed"}):
        raise DamagedFileError(f"{path}: {fault}")
    return method, params


def check_arguments(size: JSON, holdout: JSON, seed: JSON, params: dict[str, JSON]) -> None:
    """Refuse what a file could hold and nobody could read back."""
    if size is not None and not (_is_count(size) and 1 <= int(size) <= MAX_SIDE):  # type: ignore[arg-type]
        raise ValueError(f"size must be a whole number of pixels from 1 to {MAX_SIDE}, not {size!r}")
    if not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise ValueError(f"holdout must be from 0 to below 1, not {holdout!r}")
    if not isinstance(seed, int) or abs(seed) >= 2**63:
        raise ValueError(f"seed must be a whole number below 2**63, not {seed!r}")
    for fault in _faults(params):
        raise ValueError(f"params: {fault}")


def _faults(value: JSON, depth: int = 0) -> Iterator[str]:
    """What no parameter of a model file may be."""
    if isinstance(value, dict | list):
        items = list(value.values()) if isinstance(value, dict) else value
        if depth > 4 or len(items) > 256:
            yield "parameters nested or listed beyond any use"
        else:
            for item in items:
                yield from _faults(item, depth + 1)
    elif isinstance(value, int | float):
        if not math.isfinite(value) or abs(value) > _MAX_NUMBER:
            yield f"parameter value {value!r} is beyond {_MAX_NUMBER}"
    elif isinstance(value, str) and len(value) > 300:
        yield f"a parameter has {len(value)} characters"


def _with_network(path: Path, header: Header, learner: Learner, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with those of the network where the file only names it."""
    named = header.get("network")
    if named is None:
        return tensors
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(named, dict) or not isinstance(name, str) or not backbones.is_ready_by_name(name):
        raise DamagedFileError(f"{path}: names the network {name!r}, which is not one of those installed by name")
    backbones.fill(learner.network, name)
    if state_digest(learner.network) != named.get("sha256"):
        raise DamagedFileError(
            f"{path} was made on another {name} than the one installed here; load it where it was made and save it "
            "with the network whole"
        )
    return tensors | {f"network.{key}": tensor for key, tensor in learner.network.state_dict().items()}


def _check_statistics(path: Path, header: Header, learner: Learner) -> None:
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    if len(counts) != len(learner.classes_) or len(counts) > MAX_CLASSES:
        raise DamagedFileError(f"{path}: {len(counts)} counts for {len(learner.classes_)} classes")
    for name in learner.statistics:
        kept = getattr(learner, name).count.cpu()
        if len(counts) and not torch.equal(kept * counts.sum(), counts * kept.sum()):  # each image may count twice
            raise DamagedFileError(f"{path}: the counts in the header are not those of {name}")


def _is_count(value: JSON) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def privacy(learner: Learner, counts: Mapping[str, int]) -> dict[str, JSON]:
    """What is stored of the images, counted in the learner's state."""
    n_classes, of_network = len(learner.classes_), learner.network_state_names()
    kept = {name: tensor for name, tensor in learner.state_dict().items() if name not in of_network}
    of_classes = sum(t.nbytes for t in kept.values() if t.ndim and n_classes and len(t) == n_classes)
    shared = sum(t.nbytes for t in kept.values()) - of_classes - learner.draw.get_state().numel()
    return {
        "images_stored": 0 if not learner.stores_exemplars else None,
        "stores_exemplars": learner.stores_exemplars,
        "kept": learner.kept(),
        "bytes_per_class": round(of_classes / max(1, n_classes)),
        "bytes_shared": shared,
        "forgets_exactly": learner.forgets_exactly,
        "single_image_classes": sum(count == 1 for count in counts.values()),
    }


def put(path: Path, content: bytes) -> None:
    """Write a model file that the caller holds, whole or not at all; delete what belongs to it as it was before."""
    write_atomically(path, lambda file: file.write(content), held=True)
    clear_parts(path)


def parts_folder(path: Path) -> Path:
    """Where parts that ``nocl learn --workers`` has finished wait for the others; delete it to give them up."""
    real = path.resolve()
    return real.with_name(f".{real.name}.parts")


def clear_parts(path: Path) -> None:
    """Delete the parts: they fit one state of the model only, and may hold statistics of a class forgotten since."""
    shutil.rmtree(parts_folder(path), ignore_errors=True)


def normalisation(learner: Learner) -> JSON:
    """Mean and standard deviation that pixels are normalised with."""
    return {
        "mean": [float(v) for v in learner.network.mean.flatten()],
        "std": [float(v) for v in learner.network.std.flatten()],
    }
