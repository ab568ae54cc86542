"""ONNX Runtime and PyTorch give the same features, and a graph never outlives the network it was made of."""

import copy
import errno
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnx", reason="the extra onnx is not installed")

from nocl import nets
from nocl.app.classifier import Classifier
from nocl.experiments.job import Job
from nocl.learner import FrozenLearner
from nocl.methods import make
from nocl.nets import engine as engines
from nocl.nets.engine import Engine, OnnxEngine, cache_root, engine_named
from nocl.plumbing.registry import UnknownNameError
from tests.support.practice_models import pictures


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOCL_CACHE", str(tmp_path / "cache"))


def _images(size: int, n: int = 3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, 3, size, size), generator=draw).to(torch.uint8)


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [
        ("tiny_resnet18", 32, None),
        ("tiny_resnet18", 32, (1, 2, 3, 4)),
        ("efficientnet_lite0", 96, (1, 3, 5)),
        ("efficientnet_lite0", 97, (3, 5)),
        ("efficientnet_lite0@64", 32, None),
        ("tests.support.own_networks:trained", 32, None),
    ],
)
def test_both_engines_give_the_same_features(name: str, size: int, stages: tuple[int, ...] | None) -> None:
    network = nets.build(name)
    nets.load_pretrained(network, name)
    onnx = OnnxEngine()
    for n in (1, 3):
        expected = Engine().features(network, _images(size, n), size, stages)
        found = onnx.features(network, _images(size, n), size, stages)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert len(list(cache_root().glob("*.onnx"))) == 1  # it did run there, and the graph is kept
    assert float(expected.std()) > 0


def test_padding_is_part_of_the_convolutions(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    graph = engines._exported(nets.build("efficientnet_lite0"), 97, (3, 5))  # an odd size pads otherwise
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert kinds.count("Conv") == 49
    assert "Pad" not in kinds  # alone they, and the change of layout around each, take time


def test_a_cached_graph_is_used_again_and_a_foreign_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nets.build("tiny_resnet18")
    expected = OnnxEngine().features(network, _images(32), 32, None)
    exported = []
    whole = engines._exported
    monkeypatch.setattr(engines, "_exported", lambda *a: exported.append(1) or whole(*a))  # type: ignore[func-returns-value]
    assert torch.equal(OnnxEngine().features(network, _images(32), 32, None), expected)
    assert not exported
    (path,) = cache_root().glob("*.onnx")
    other = nets.build("tiny_resnet18", seed=1)
    path.write_bytes(whole(other, 32, None))  # whatever lies there under this name
    torch.testing.assert_close(OnnxEngine().features(network, _images(32), 32, None), expected)
    path.write_bytes(b"not a graph")
    torch.testing.assert_close(OnnxEngine().features(network, _images(32), 32, None), expected)
    assert len(exported) >= 1


@pytest.mark.parametrize("content", [b"not a graph", b"", b"another network"])
def test_a_cached_graph_that_is_of_no_use_is_made_again(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    network = nets.build("tiny_resnet18")
    OnnxEngine().features(network, _images(32), 32, None)
    (path,) = cache_root().glob("*.onnx")
    whole = path.read_bytes()
    if content == b"another network":
        content = engines._exported(nets.build("tiny_resnet18", seed=1), 32, None)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        engine = OnnxEngine()
        engine.features(network, _images(32), 32, None)
    assert engine._sessions[network][1] is not None  # ONNX Runtime runs it
    assert path.read_bytes() == whole
    assert not caplog.records


@pytest.mark.parametrize("reason", ["no folder", "no permission"])
def test_a_cache_that_cannot_be_written_costs_one_warning_and_nothing_else(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refused(path: Path, write: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    if reason == "no folder":
        (tmp_path / "cache").write_text("no folder can be made of it")
    else:
        monkeypatch.setattr(engines, "write_atomically", refused)
    network, engine = nets.build("tiny_resnet18"), OnnxEngine()
    with caplog.at_level(logging.WARNING):
        found = engine.features(network, _images(32), 32, None)
        OnnxEngine().features(network, _images(32), 32, (1, 2))
    assert engine._sessions[network][1] is not None
    torch.testing.assert_close(found, Engine().features(network, _images(32), 32, None), atol=1e-4, rtol=1e-4)
    (record,) = caplog.records
    assert str(cache_root()) in record.getMessage()
    assert "NOCL_CACHE" in record.getMessage()


def test_a_network_that_has_changed_gets_another_graph() -> None:
    network, onnx = nets.build("tiny_resnet18"), OnnxEngine()
    before = onnx.features(network, _images(32), 32, None)
    with torch.no_grad():
        network.get_parameter("conv1.weight").mul_(2)
    after = onnx.features(network, _images(32), 32, None)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, Engine().features(network, _images(32), 32, None), atol=1e-4, rtol=1e-4)


def test_engines_are_shared_by_copies_and_can_be_sent_to_another_process() -> None:
    learner = make("ncm", backbone="tiny_resnet18")
    assert isinstance(learner, FrozenLearner)
    learner.engine = engine_named("onnx")
    learner.features(_images(32))
    assert copy.deepcopy(learner).engine is learner.engine
    assert isinstance(pickle.loads(pickle.dumps(learner.engine)), OnnxEngine)


def test_without_the_extra_torch_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("NOCL_ENGINE")
    with caplog.at_level(logging.WARNING):
        assert engine_named("auto").name == "torch"
        assert not caplog.records
        assert engine_named("onnx").name == "torch"
    assert "pip install 'nocl[onnx]'" in caplog.text
    with pytest.raises(UnknownNameError, match="unknown engine 'onx'"):
        engine_named("onx")


def test_a_network_that_cannot_be_exported_is_run_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object) -> bytes:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(engines, "_exported", fails)
    network = nets.build("tiny_resnet18")
    with caplog.at_level(logging.WARNING):
        found = OnnxEngine().features(network, _images(32), 32, None)
    assert torch.equal(found, Engine().features(network, _images(32), 32, None))
    assert "PyTorch runs it: no such operator" in caplog.text


def test_wrong_images_are_refused_by_both() -> None:
    network = nets.build("tiny_resnet18")
    for engine in (Engine(), OnnxEngine()):
        with pytest.raises(ValueError, match="images must be uint8"):
            engine.features(network, _images(48), 32, None)


def test_the_classifier_takes_onnx_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOCL_ENGINE")
    model = Classifier("ncm", backbone="cifar100").partial_fit(pictures("red", 3), "red")
    model.partial_fit(pictures("blue", 3), "blue")
    assert model.about()["engine"] == "onnx"
    model.save(tmp_path / "m.nocl")
    plain = Classifier.load(tmp_path / "m.nocl", engine="torch")
    assert plain.about()["engine"] == "torch"
    x = pictures("grey", 3)
    np.testing.assert_allclose(plain.decision_function(x), model.decision_function(x), atol=1e-4)
    model.apart().partial_fit(pictures("red", 1), "red")  # parts share the engine


def test_a_run_is_told_apart_by_its_engine() -> None:
    usual, fast = Job("ncm"), Job("ncm", engine="onnx")
    assert usual.digest() != fast.digest()
    learner = fast.with_changes(params={"backbone": "tiny_resnet18"}).learner(32)
    assert isinstance(learner, FrozenLearner)
    assert learner.engine.name == "onnx"
