"""Many methods, partitions and class orders on identical features of one network.

Features come from one network and are computed once, or from a file of embeddings; every run is an ordinary
:class:`Job` on them. So differences between methods cannot come from the network, and a run costs what the method
costs.

If a method needs a projection or heads besides the network (DSR, NCM with a projection), these are trained on the
stored features of the base classes for ``recipe.head_epochs``, with one view of each image, see
:func:`nocl.pretrain.heads_on_features`. A run on images uses augmented views instead, so both agree only if the recipe
has one view without augmentation (``ce`` without ``augment``) and one batch; results on features say ``heads`` in
``base``.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from nocl.data.features import FeatureData, extract
from nocl.experiments.job import Job, parse_settings
from nocl.experiments.linear_probe import PROBE, joint_probe
from nocl.results import RunResult


def read_method(text: str, like: Job) -> Job:
    """``like`` with the method in a text such as ``slda`` or ``slda@covariance=fixed,update=official``.

    Values are JSON or plain text. ``preset`` takes the method's named settings. An unknown name is an error at once,
    not after the other runs.

    >>> job = read_method("ranpac@expansion=500,ridge=0.1", Job("ncm", network_from="net.safetensors"))
    >>> job.method, job.params
    ('ranpac', {'expansion': 500, 'ridge': 0.1})
    """
    method, _, settings = text.partition("@")
    params = parse_settings(re.split(r",(?=[\w.]+=)", settings) if settings else [])
    preset = params.pop("preset", None)
    job = replace(like, method=method, params=like.params | params, preset=None if preset is None else str(preset))
    if not job.on_features():
        raise TypeError(f"{text} needs more than the features of a given network; use `nocl run --backbone-from`")
    return job


def jobs_of(methods: Sequence[str], like: Job, partitions: Sequence[str], orders: int) -> list[Job]:
    """A job for every method, partition and order; other settings as in ``like``. A leak is refused before any run.

    All learners have the same seed.
    """
    found = [
        replace(one, partition=partition, order_seed=order)
        for one, partition, order in product((read_method(text, like) for text in methods), partitions, range(orders))
    ]
    for partition in partitions:
        next(job for job in found if job.partition == partition).check_order()
    return found


def bound(like: Job, path: Path) -> RunResult:
    """The joint linear probe of the last stage's features; read from that file if it is there."""
    features = _last_stage(like)
    if path.exists():
        found = RunResult.load(path)
        if (found.method, found.stream.get("features")) == (PROBE, features.origin):
            return found
    found = joint_probe(features, seed=like.seed)
    found.save(path)
    return found


def _last_stage(like: Job) -> FeatureData:
    images = like.images()
    if isinstance(images, FeatureData):
        return images
    assert like.network_from is not None
    cache = None if like.feature_cache is None else Path(like.feature_cache)
    backbone = str(like.params.get("backbone", "reduced_resnet18"))
    return extract(
        images, Path(like.network_from), cache=cache, backbone=backbone, device=like.device, engine=like.engine
    )
