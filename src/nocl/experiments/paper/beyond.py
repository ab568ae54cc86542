"""Comparisons beyond the paper: methods on every kind of stream (``nocl.arrivals``), in place of one partition.

``streams`` is meant for a given network (``--backbone-from``), ``streams-pretrained`` runs on EfficientNet-Lite0 with
its ImageNet weights. Rows are smaller than the papers' where the whole table would take days on a CPU; each says how.
"""

from dataclasses import replace

from nocl.arrivals import STREAMS
from nocl.experiments.paper.experiment import Experiment, Row
from nocl.plumbing.types import JSON

_HEAD = "nocl.methods.online_head:OnlineHead"
_STREAM_ROWS = (
    Row("ncm", "ncm"),
    Row("slda", "slda"),
    Row("fecam", "fecam"),
    Row("ranpac", "ranpac", params={"expansion": 1000}),  # smaller than the papers', for time; acil and gacl too
    Row("acil", "acil", params={"expansion": 1000}),
    Row("foal", "acil", "foal"),
    Row("gacl", "acil", "gacl", {"expansion": 1000}),
    Row("rda", "rda"),
    # refined every 1,000 images on every stream, for not all of them have sessions; fast: for time
    Row("dsr", "dsr", "fast", {"refine_every": 1000}),
    Row("head", _HEAD),  # SGD on a linear head
    Row("er", _HEAD, params={"memory_size": 1000}),  # the same with replay: the exemplars are stored features
    # It trains the network. 100 in the paper, 2 x 2; and the one stream of few images: for time
    Row(
        "scr", "scr", params={"replay_batch": 10, "recipe": {"head_epochs": 1, "head_rounds": 1}},
        streams=("long_tailed",), seeds=1,
    ),
)  # fmt: skip
_PRETRAINED: dict[str, JSON] = {"backbone": "efficientnet_lite0@128"}
_PRETRAINED_ROWS = (
    Row("ncm", "ncm", params=_PRETRAINED),
    Row("slda", "slda", params=_PRETRAINED),
    Row("fecam", "fecam", params={"covariance": "shared", **_PRETRAINED}),  # a full one is 13 MB a class
    Row("ranpac", "ranpac", params={"expansion": 1000, **_PRETRAINED}),
    Row("acil", "acil", params={"expansion": 1000, **_PRETRAINED}),
    Row("foal", "acil", "foal", {"stages": [1, 2, 3, 4, 5], **_PRETRAINED}),  # all stages of this network
    Row("gacl", "acil", "gacl", {"expansion": 1000, **_PRETRAINED}),
    Row("rda", "rda", params=_PRETRAINED),
    Row("dsr", "dsr", "fast", {"refine_every": 1000, "dim": 512, **_PRETRAINED}),  # 2,048 in the paper
    Row("head", _HEAD, params=_PRETRAINED),
    Row("er", _HEAD, params={"memory_size": 1000, **_PRETRAINED}),
)
_STREAMS = Experiment(
    "streams", "Methods on every kind of stream", _STREAM_ROWS, None, ("cifar100",), streams=tuple(STREAMS),
    test_every=2000, figure="streams",
)  # fmt: skip
BEYOND: dict[str, Experiment] = {
    _STREAMS.name: _STREAMS,
    "streams-pretrained": replace(
        _STREAMS, name="streams-pretrained", title="The same on EfficientNet-Lite0 (ImageNet)", rows=_PRETRAINED_ROWS,
        test_every=5000, test_every_of=(("long_tailed", 1000),), network="pretrained", engine="onnx",
    ),
}  # fmt: skip
