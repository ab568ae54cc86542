"""A learner as one safetensors file, with its class, parameters and origin in the header. No pickle."""

from pathlib import Path

from nocl.learner import Learner
from nocl.methods import name_of, remake
from nocl.plumbing.files import DamagedFileError, read_tensors, write_tensors
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__

KIND = "nocl learner"
FORMAT = 1


def save(learner: Learner, path: Path, extra: dict[str, JSON] | None = None) -> None:
    """Write everything learned, whole or not at all; ``extra`` is kept beside it."""
    header: dict[str, JSON] = {
        "kind": KIND,
        "format": FORMAT,
        "nocl": __version__,
        "method": name_of(learner),
        "params": learner.get_params(),
        "base": learner.base_,
        "log": learner.log_,
        "extra": extra or {},
    }
    write_tensors(path, learner.state_dict(), header)


def load(path: Path, *, device: str = "cpu") -> Learner:
    """The learner as it was when saved: it predicts and goes on learning as if never interrupted."""
    return load_with_extra(path, device=device)[0]


def load_with_extra(path: Path, *, device: str = "cpu") -> tuple[Learner, dict[str, JSON]]:
    """The learner and what was kept beside it."""
    tensors, header = read_tensors(path)
    if header.get("kind") != KIND:
        raise DamagedFileError(f"{path} is not a saved learner (kind {header.get('kind')!r})")
    if header.get("format") != FORMAT:
        raise DamagedFileError(f"{path} has format {header.get('format')}, this nocl reads {FORMAT}: update nocl")
    method, params = header.get("method"), header.get("params")
    base, curves, extra = header.get("base"), header.get("log"), header.get("extra")
    if not (isinstance(method, str) and isinstance(params, dict) and isinstance(extra, dict)):
        raise DamagedFileError(f"{path}: the header lacks a method or its parameters")
    learner = remake(method, params)
    try:
        learner.load_state_dict(tensors)
    except (RuntimeError, KeyError) as error:
        raise DamagedFileError(f"{path}: the tensors do not fit {method} with the saved parameters: {error}") from error
    learner.base_ = base if isinstance(base, dict) else {}
    learner.log_ = curves if isinstance(curves, dict) else {}
    return learner.eval().to(device), extra
