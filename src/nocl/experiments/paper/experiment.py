"""What an experiment is: rows on data sets, or on kinds of streams; and how a user cuts it down. It runs nothing."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nocl.experiments.job import Job
from nocl.methods import METHODS
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON

MEMORIES = (1000, 2000)


@dataclass(frozen=True)
class Row:
    """One line of a table as the paper names it, and what is run for it; ``x`` places it in a figure's ``panel``.

    ``streams`` and ``seeds`` cut a row down that would take hours: it is run on these streams alone, with the first
    seeds alone.
    """

    label: str
    method: str
    preset: str | None = None
    params: dict[str, JSON] = field(default_factory=dict)
    panel: str = ""
    x: float | None = None
    streams: tuple[str, ...] = ()
    seeds: int | None = None

    @property
    def exists(self) -> bool:
        """Whether the method is there to be run."""
        return self.method in METHODS or ":" in self.method

    @property
    def stores_exemplars(self) -> bool:
        return self.exists and by_name(self.method, METHODS, "method").stores_exemplars


@dataclass(frozen=True)
class Experiment:
    """A table or figure: what is run, on what, and which numbers are compared."""

    name: str
    title: str
    rows: tuple[Row, ...]
    table: str | None = None  # of nocl.experiments.paper.values; None: the paper prints no numbers
    datasets: tuple[str, ...] = ("cifar100", "mini_imagenet")
    partition: str = "60+4x10"
    streams: tuple[str, ...] = ()  # kinds of streams that are compared; empty: the partition's
    test_every: int = 0  # images between tests in the middle of sessions
    test_every_of: tuple[tuple[str, int], ...] = ()  # of single kinds of streams, those with few images
    network: str | None = None  # the given network, unless the user names another
    engine: str = "torch"  # what runs it
    metrics: tuple[str, ...] = ("acc", "base", "novel", "hm")
    figure: Literal["bars", "sweep", "losses", "streams"] = "bars"
    trains_its_base: bool = False  # the base network is what differs, so none can be given
    foreign_orders: bool = False  # one given network for every class order, as the published code: a leak, never tacit
    claim: str = ""  # what the paper says in words


@dataclass(frozen=True)
class Choice:
    """How a user cuts an experiment down."""

    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    memories: tuple[int, ...] = MEMORIES
    epochs: int | None = None
    small: bool = False
    network: str | None = None  # the file of a given base network
    networks: str | None = None  # a folder of kept networks, for methods on a frozen network
    allow_leak: bool = False
    root: str | None = None
    device: str = "cpu"
    streams: tuple[str, ...] = ()
    test_every: int | None = None  # None: the experiment's
    feature_cache: str | None = None
    settings: dict[str, JSON] = field(default_factory=dict)  # parameters for every run


class Planned(NamedTuple):
    """A job and the row of the table that it is run for."""

    row: Row
    job: Job

    @property
    def memory(self) -> int | None:
        """The memory size that the table names."""
        size = self.job.params.get("memory_size")
        return size if isinstance(size, int) else None

    def __str__(self) -> str:
        memory = "" if self.memory is None else f" {self.memory}"
        seed = f"seed {self.job.seed}" if self.job.order_seed is None else f"order {self.job.order_seed}"
        stream = f" {self.job.arrivals.partition(':')[0]}" if self.job.arrivals else ""
        return f"{self.row.label}{memory} {self.job.dataset}{stream} {seed}"
