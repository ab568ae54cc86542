"""The stream of a run on a given network: its classes are the base classes, and an order permutes the others.

One network file belongs to one set of base classes. A class that is novel in the stream and was trained on by the
network is a leak: refused unless allowed, and then counted in the stream's description, which every result carries.
A foreign order is the leak of the paper's published code: one network for all class orders, whatever it was trained on.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from nocl.data import Dataset
from nocl.experiments.report.summary import FOREIGN, LEAK, SILENT, UNTRAINED
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON
from nocl.pretrain import WrongBaseError
from nocl.streams import Stream, arrange, base_size, parse_partition, parse_plan


def stream_on_network(
    data: Dataset,
    network_classes: Sequence[int],
    *,
    partition: str = "60+4x10",
    batch_size: int = 10,
    base_batch_size: int = 100,
    order_seed: int = 0,
    allow_leak: bool = False,
    foreign_order: bool = False,
    rows_at_once: int | None = None,
) -> Stream:
    """The data set as a stream for a network that was trained on these classes (none: the file does not say).

    ``rows_at_once`` makes larger batches, for methods whose answer does not depend on them. ``foreign_order`` as in
    :func:`blocks_on_network`.
    """
    sizes = parse_partition(partition, data.n_classes)
    blocks = blocks_on_network(sizes, network_classes, order_seed, foreign=foreign_order)
    remedy = "give each class order a network of its own" if foreign_order else "leave this partition out"
    overlap = _overlap(f"partition {partition}", blocks[0], network_classes, allow_leak, remedy)
    about: dict[str, JSON] = {
        "dataset": data.name,
        "options": data.options,
        "fingerprint": data.fingerprint,
        "partition": partition,
        "order_seed": order_seed,
        "batch_size": batch_size,
        "base_batch_size": base_batch_size,
        "drop_last": False,
        **data.made_by,
        **overlap,
    }
    if foreign_order:
        about[FOREIGN] = True
    if rows_at_once is not None:
        about["rows_at_once"] = rows_at_once
    return Stream(
        data,
        blocks,
        about,
        seed=order_seed,
        batch_size=rows_at_once or batch_size,
        base_batch_size=max(base_batch_size, rows_at_once or 0),
        drop_last=False,
        base_seed=0,  # so that all orders on one network share its base session
    )


def arrange_on_network(
    data: Dataset,
    network_classes: Sequence[int],
    *,
    arrivals: str,
    batch_size: int = 10,
    base_batch_size: int = 100,
    seed: int = 0,
    allow_leak: bool = False,
    rows_at_once: int | None = None,
) -> Stream:
    """As :func:`stream_on_network`, for streams that a plan describes; ``seed`` decides all after the base session."""
    n_base = base_size(parse_plan(arrivals), data)
    base = blocks_on_network([n_base, data.n_classes - n_base], network_classes, 0)[0]
    overlap = _overlap(f"stream {arrivals}", base, network_classes, allow_leak, "leave this stream out")
    return arrange(
        data, arrivals, batch_size=batch_size, base_batch_size=base_batch_size, seed=seed, base=base,
        rows_at_once=rows_at_once, more=overlap,
    )  # fmt: skip


def _overlap(
    stream: str, base: Sequence[int], network_classes: Sequence[int], allow_leak: bool, remedy: str
) -> dict[str, JSON]:
    """How many classes the network and the base session do not share; a leak is refused unless it is allowed."""
    known = set(network_classes) or set(base)
    leaked = len(known - set(base))
    if leaked and not allow_leak:
        raise WrongBaseError(
            f"{stream} has {len(base)} base classes, but the network was trained on {len(known)}: {leaked} of them "
            f"would come again as novel; {remedy} or allow the leak"
        )
    silent: dict[str, JSON] = {} if network_classes else {SILENT: True}
    return {LEAK: leaked, UNTRAINED: len(set(base) - known), **silent}


def blocks_on_network(
    sizes: Sequence[int], network_classes: Sequence[int], order: int, *, foreign: bool = False
) -> list[tuple[int, ...]]:
    """Classes of each session. The order of the seed whose first classes are the network's is taken as it is.

    Any other order permutes what comes after the base; order 0 leaves it in the usual order of seed 0. The base session
    takes the network's own classes first. If it is smaller than they are, some come later as if novel. If it is larger,
    classes the network has not seen fill it up, a different set in each order. ``foreign``: the order of the seed
    whatever the network was trained on.
    """
    known = list(network_classes) or class_order(sum(sizes), 0)[: sizes[0]]
    everything = class_order(sum(sizes), order)
    if not foreign and everything[: len(known)] != known:
        usual = class_order(sum(sizes), 0)
        late = [*known[sizes[0] :], *(label for label in usual if label not in set(known))]
        if order:
            late = [late[i] for i in torch.randperm(len(late), generator=generator(order, "arena order"))]
        everything = [*known[: sizes[0]], *late]
    return [tuple(everything[a:b]) for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]


def class_order(n_classes: int, seed: int) -> list[int]:
    """The class order of a seed, as :func:`~nocl.streams.class_incremental` has it."""
    order: list[int] = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
