"""How a frozen network is computed: by PyTorch, or by ONNX Runtime, which is faster on a CPU (extra ``onnx``).

A frozen network is a fixed graph: it is exported once for the requested stages and image size, cached under the digest
of its weights (``NOCL_CACHE``), and run with as many threads as PyTorch has. Each time a graph is loaded, its features
of two fixed images are compared with PyTorch's, so that a graph of other weights or code is never used. Experiments use
``torch``, whose results repeat bit for bit; applications use ``auto``: the engine in ``NOCL_ENGINE``, else ``onnx`` if
it is installed.
"""

import functools
import importlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import platformdirs
import torch
from torch import Tensor, nn

from nocl.nets.backbone import Backbone
from nocl.nets.stored import StoredFeatures
from nocl.nets.trained import state_digest
from nocl.plumbing.files import digest, write_atomically
from nocl.plumbing.registry import UnknownNameError, unknown

log = logging.getLogger(__name__)
ENGINES = ("torch", "onnx", "auto")
TOLERANCE = 1e-4  # largest difference of a feature, relative to the largest feature of the batch
_NEEDS = ("onnx", "onnxruntime")
_EDITION = 2  # of exported graphs: one more when the same network is exported in another way

Stages = Sequence[int] | None


class Engine:
    """Features of uint8 images by PyTorch itself."""

    name = "torch"

    @torch.no_grad()
    def features(self, network: Backbone, x: Tensor, image_size: int, stages: Stages) -> Tensor:
        """Features [B, d] on the network's device."""
        network.eval()
        z: Tensor = network(network.normalise(network.read(x, image_size)), stages)
        return z

    def __deepcopy__(self, memo: dict[int, object]) -> "Engine":
        return self  # it holds nothing of a learner, so copies can share it

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return engine_named, (self.name,)


class OnnxEngine(Engine):
    """Features by ONNX Runtime; by PyTorch for networks on other devices and those that cannot be exported."""

    name = "onnx"

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[Backbone, tuple[object, Any]] = WeakKeyDictionary()

    @torch.no_grad()
    def features(self, network: Backbone, x: Tensor, image_size: int, stages: Stages) -> Tensor:
        if isinstance(network, StoredFeatures) or network.mean.device.type != "cpu" or not len(x):
            return super().features(network, x, image_size, stages)
        chosen = None if stages is None else tuple(stages)
        known = (_versions(network), chosen, image_size, torch.get_num_threads())
        kept = self._sessions.get(network)
        if kept is None or kept[0] != known:  # the network has changed, or other features are requested
            kept = (known, self._open(network, image_size, chosen))
            self._sessions[network] = kept
        if kept[1] is None:
            return super().features(network, x, image_size, stages)
        network.check(x, image_size)
        return torch.from_numpy(kept[1].run(None, {"images": x.contiguous().numpy()})[0])

    def _open(self, network: Backbone, image_size: int, stages: tuple[int, ...] | None) -> Any:
        """An ONNX Runtime session of this network; None, with a warning, if it cannot be exported."""
        network.eval()
        what = [_EDITION, type(network).__qualname__, state_digest(network)]
        about = [*what, list(stages or ()), image_size, network.enlarge_to]
        path = cache_root() / f"{digest(about)}.onnx"  # type: ignore[arg-type]
        session = _cached(path)
        if session is not None and self._agrees(session, network, image_size, stages):
            return session
        try:
            graph = _exported(network, image_size, stages)
            session = _session(graph)
            if not self._agrees(session, network, image_size, stages):
                raise RuntimeError("its features differ from PyTorch's")
        except Exception as error:  # exporters raise many kinds of errors; PyTorch is used then
            log.warning("the network cannot be run by ONNX Runtime, PyTorch runs it: %s", error)
            return None
        try:
            write_atomically(path, lambda file: file.write(graph))
        except OSError as error:
            _warn_not_kept(path.parent, error.strerror or str(error))
        return session

    def _agrees(self, session: Any, network: Backbone, image_size: int, stages: tuple[int, ...] | None) -> bool:
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (2, 3, image_size, image_size), generator=draw, dtype=torch.uint8)
        expected = super().features(network, x, image_size, stages)
        try:
            found = torch.from_numpy(session.run(None, {"images": x.numpy()})[0])
        except Exception as error:  # a graph of other code may not accept these images
            log.info("a cached graph is made anew: %s", error)
            return False
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        return found.shape == expected.shape and float((found - expected).abs().max()) <= allowed


def engine_named(name: str) -> Engine:
    """``torch``, ``onnx``, or ``auto``: the engine in ``NOCL_ENGINE``, else onnx if it is installed."""
    name = os.environ.get("NOCL_ENGINE", name) if name == "auto" else name
    if name not in ENGINES:
        raise UnknownNameError(unknown(name, ENGINES, "engine"))
    missing = [package for package in _NEEDS if importlib.util.find_spec(package) is None]
    if name == "onnx" and missing:
        log.warning("engine onnx needs the package %s, PyTorch is used: pip install 'nocl[onnx]'", missing[0])
    return Engine() if name == "torch" or missing else OnnxEngine()


def cache_root() -> Path:
    """The folder of graphs: in ``NOCL_CACHE``, else in the user's cache directory."""
    return Path(os.environ.get("NOCL_CACHE") or platformdirs.user_cache_path("nocl")).expanduser() / "graphs"


class _Graph(nn.Module):
    def __init__(self, network: Backbone, stages: Stages) -> None:
        super().__init__()
        self.network, self.stages = network, stages

    def forward(self, images: Tensor) -> Tensor:
        z: Tensor = self.network(self.network.normalise(images.float() / 255), self.stages)
        return z


def _exported(network: Backbone, image_size: int, stages: Stages) -> bytes:
    example = torch.zeros(2, 3, image_size, image_size, dtype=torch.uint8)
    out: Any = io.BytesIO()  # this exporter accepts a file, although its signature says path
    with warnings.catch_warnings():  # dynamo=False: thirteen times as fast as the newer exporter, for the same graph
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Graph(network, stages).eval(), (example,), out, input_names=["images"], output_names=["features"],
            dynamic_axes={"images": {0: "batch"}, "features": {0: "batch"}}, dynamo=False,
        )  # fmt: skip
    graph: bytes = out.getvalue()
    return graph


def _session(graph: bytes) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _cached(path: Path) -> Any:
    """A session of a cached graph; None if there is none or it cannot be opened."""
    try:
        return _session(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file gives many kinds of errors; the graph is exported again
        log.info("%s: a cached graph cannot be opened and is made anew: %s", path, error)
        return None


@functools.cache
def _warn_not_kept(folder: Path, reason: str) -> None:
    """Warn once for each folder, not again for each network."""
    log.warning("graphs cannot be kept in %s (%s), so each start exports them: set NOCL_CACHE", folder, reason)


def _versions(network: Backbone) -> tuple[int, int]:
    """Numbers that change whenever a weight is modified in place or replaced."""
    total, places = 0, 0
    for module in network.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                total += tensor._version
                places ^= tensor.data_ptr()
    return total, places
