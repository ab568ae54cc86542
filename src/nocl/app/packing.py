"""What a classifier has learned from a group of images, as bytes for the journal: statistics, names, counts."""

import json

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as tensor_bytes

from nocl.app.classifier import Classifier
from nocl.app.naming import label_of


def pack(part: Classifier, entry: str = "") -> bytes:
    """The statistics of a classifier made by ``apart``, with names and counts of its classes.

    ``entry`` is the id of the history's entry that the lesson belongs to. Of a tensor of zeros, such as the covariance
    of a single image, only the shape is written.
    """
    learner = part.learner_
    left_out = learner.network_state_names() | {"_extra_state"}
    tensors = {name: tensor for name, tensor in learner.state_dict().items() if name not in left_out}
    zeros = {name: list(tensor.shape) for name, tensor in tensors.items() if not bool(tensor.any())}
    about = {"counts": json.dumps(part.counts_), "zeros": json.dumps(zeros), "entry": entry}
    return tensor_bytes(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if name not in zeros}, metadata=about
    )


def unpack(payload: bytes, empty: Classifier) -> Classifier:
    """The classifier that ``pack`` was given, as a copy of an empty one made by ``apart``."""
    part = empty.copy()
    learner = part.learner_
    counts = counts_in(payload)
    shapes: dict[str, list[int]] = json.loads(_about(payload)["zeros"])
    types = {name: tensor.dtype for name, tensor in learner.state_dict().items()}
    zeros = {name: torch.zeros(shape, dtype=types[name]) for name, shape in shapes.items()}
    learner.load_state_dict(tensors_from(payload) | zeros, strict=False)  # the network is the model's own
    part._names = {label_of(name): name for name in counts}
    part._counts.update(counts)
    return part


def counts_in(payload: bytes) -> dict[str, int]:
    """Names and counts of the classes in what ``pack`` made."""
    counts: dict[str, int] = json.loads(_about(payload)["counts"])
    return counts


def entry_in(payload: bytes) -> str | None:
    """The entry of the history that ``pack`` was given; None if there was none."""
    return _about(payload).get("entry") or None


def _about(payload: bytes) -> dict[str, str]:
    length = int.from_bytes(payload[:8], "little")
    about: dict[str, str] = json.loads(payload[8 : 8 + length])["__metadata__"]
    return about
