"""The one format of model files and checkpoints: safetensors with a JSON header and a digest of everything.

The header is one JSON object under the name ``nocl``: kind, format, whatever the kind needs, and the SHA-256 of the
rest of the header and of all tensors. A digest detects damage, not an attack: whoever can write the file can write a
matching digest, so a header is still not trusted. Nothing is unpickled.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nocl.plumbing.files import DamagedFileError, read_tensors, tensor_bytes
from nocl.plumbing.types import JSON

Header = dict[str, JSON]
FLOOR = 64 << 20  # bytes of a tensor that are allowed whatever the file's size


def sealed_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, JSON]) -> bytes:
    """The content of a file with these tensors and this header, and a digest of both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {**header, "digest": content_digest(header, plain)}
    return tensor_bytes(plain, {"nocl": content})


def read_sealed(path: Path, kind: str) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a file of this kind, compared with their digest."""
    tensors, outer = read_tensors(path)
    return opened(path, kind, outer, tensors), tensors


def opened(path: Path, kind: str, outer: Header, tensors: Mapping[str, Tensor]) -> Header:
    """The header inside a file's own, compared with its digest."""
    header = outer.get("nocl")
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise DamagedFileError(f"{path} is not a {kind} (it is a safetensors file of something else)")
    version = header.get("format")
    if not isinstance(version, int) or isinstance(version, bool):
        raise DamagedFileError(f"{path}: the format version is {version!r}, not a number")
    if header.get("digest") != content_digest(header, tensors):
        raise DamagedFileError(f"{path} is damaged: its content does not match its digest; copy it again")
    return header


def content_digest(header: Mapping[str, JSON], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a header without its digest, and of the tensors with their names, types and shapes."""
    content = {name: value for name, value in header.items() if name != "digest"}
    total = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return total.hexdigest()


class NoLargerThan(TorchDispatchMode):
    """Inside the ``with`` block, a tensor much larger than the file cannot be created.

    A header of a few bytes may otherwise request a matrix of gigabytes.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._limit = FLOOR + 4 * sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sizes = [arg for arg in args if isinstance(arg, list | tuple) and arg and all(type(i) is int for i in arg)]
        if "eye" in str(function):
            numbers = [arg for arg in args if isinstance(arg, int)]
            sizes.append([*numbers, *numbers][:2])
        for size in sizes:
            wanted = 1
            for side in size:
                wanted *= max(side, 1)
            if 4 * wanted > self._limit:
                raise MemoryError(f"a tensor of {list(size)} is more than the file justifies")
        return function(*args, **(kwargs or {}))
