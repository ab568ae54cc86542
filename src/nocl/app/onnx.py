"""A fitted classifier as one ONNX file (extra ``onnx``): raw pixels in, scores and probabilities out.

Input ``images``: uint8 [B, 3, size, size], as :mod:`nocl.data.pictures` makes them. Outputs ``scores`` [B, K] and
``probabilities`` [B, K]; the class names, in column order, are in the file's metadata under ``classes``. Any method
whose scores are tensor operations on the features can be exported; others raise an error.
"""

import importlib
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nocl.app.classifier import Classifier
from nocl.learner import FrozenLearner, Learner, UnsupportedError
from nocl.nets.engine import Engine
from nocl.nets.timm import MissingExtraError
from nocl.plumbing.files import write_atomically


class _Scorer(nn.Module):
    def __init__(self, learner: Learner, temperature: float) -> None:
        super().__init__()
        self.learner, self.temperature = learner, temperature
        self.portable = learner.portable_scorer() if isinstance(learner, FrozenLearner) else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.portable is not None and isinstance(self.learner, FrozenLearner):
            scores = self.portable(self.learner.features(images)).float()
        else:
            scores = self.learner.decision_function(images).float()
        return scores, torch.softmax(scores / self.temperature, dim=1)


def export_onnx(model: Classifier, path: Path) -> None:
    """Write the current model; export it again after it has learned more."""
    onnx = _needed("onnx")
    _needed("onnxscript")
    learner = model.learner_.copy_on_network()
    if isinstance(learner, FrozenLearner):
        learner.engine = Engine()  # what is exported is PyTorch's graph
    scorer = _Scorer(learner, model.calibration_.temperature).eval()
    example = torch.zeros(2, 3, model.size, model.size, dtype=torch.uint8)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                scorer, (example,), input_names=["images"], output_names=["scores", "probabilities"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1 << 20)},), dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many kinds of errors if scores cannot be traced
        raise UnsupportedError(f"method {model.method!r} cannot be exported to ONNX: {error}") from error
    proto: Any = program.model_proto  # type: ignore[union-attr]
    about = {"classes": json.dumps(model.class_names), "size": str(model.size), "method": model.method}
    about["short_side"] = str(model.short_side)
    for key, value in {**about, "temperature": repr(model.calibration_.temperature)}.items():
        proto.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(proto)
    blob = io.BytesIO(proto.SerializeToString())
    write_atomically(path, lambda file: file.write(blob.getbuffer()))


def _needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"ONNX export needs the package {package}: pip install 'nocl[onnx]'") from error
