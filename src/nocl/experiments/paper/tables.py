"""The paper's tables and figures as named grids: methods x data sets x memory sizes x seeds; and those beyond it.

An :class:`Experiment` says what is compared, :func:`plan` turns it into jobs, cut down to a user's choice. Nothing runs
here and nothing is drawn. Rows of methods that the paper does not have stand below the paper's own. Beyond the paper
are the comparisons over streams (``beyond.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

from nocl.experiments.job import Job, over
from nocl.experiments.networks import kept_network
from nocl.experiments.paper.beyond import BEYOND
from nocl.experiments.paper.experiment import MEMORIES, Choice, Experiment, Planned, Row
from nocl.learner import Learner
from nocl.methods import METHODS
from nocl.plumbing.registry import UnknownNameError, by_name, unknown
from nocl.plumbing.types import JSON

ALL_DATASETS = ("cifar100", "mini_imagenet", "core50")
SMALL_DATA: dict[str, JSON] = {"n_classes": 50, "train_per_class": 4, "test_per_class": 2}
SMALL_MEMORIES = {1000: 50, 2000: 100}


def _methods(*labels: str) -> tuple[Row, ...]:
    return tuple(Row(label, *_NAMES[label]) for label in labels)


_NAMES: dict[str, tuple[str, str | None]] = {
    name: (name.lower().removesuffix("_ft"), "ft" if name.endswith("_ft") else None)
    for name in (
        "ALICE", "FACT", "PASS", "SSRE", "MIR", "GDumb", "ASER", "SCR", "SCR_ft", "OCM", "OCM_ft", "DVC", "DVC_ft",
        "DSR",
    )
}  # fmt: skip
CONTROL = Row("DSR T=0", "dsr", params={"iterations": 0})
FAST = Row("DSR fast", "dsr", "fast")
_PARTITION_ROWS = ("ALICE", "PASS", "SCR", "SCR_ft", "OCM", "OCM_ft", "DVC", "DVC_ft", "DSR")
_MAIN_ROWS = tuple(_NAMES)


def _sweep(parameter: str, values: Sequence[float], panel: str = "") -> tuple[Row, ...]:
    """DSR with one parameter varied."""
    name = panel or parameter
    return tuple(Row(f"{name} = {value:g}", "dsr", params={parameter: value}, panel=name, x=value) for value in values)


def _partition(text: str, rows: tuple[str, ...], title: str) -> Experiment:
    known = {_NAMES[label][0] for label in rows}
    others = tuple(Row(name, name) for name in METHODS if name not in known)
    name = "partition-" if text != "60+4x10" else "main-"
    name += text.replace("+", "-").replace("x", "-")
    return Experiment(name, title, (*_methods(*rows), CONTROL, FAST, *others), text, ALL_DATASETS, text)


def _beside_control(label: str, params: dict[str, JSON], x: float | None = None) -> tuple[Row, ...]:
    """A row of DSR and the same without refinement: what is left of it is the projection."""
    control = Row(f"{label} T=0", "dsr", params={**params, **CONTROL.params})
    return Row(label, "dsr", params=params, panel="" if x is None else "D", x=x), control


_STRATEGIES = {"CE": "ce", "SC": "sc", "SC+SSL": "sc+ssl", "SC+DA": "sc+da"}
_LIST = (
    _partition("60+4x10", _MAIN_ROWS, "60 % base classes, then 10 sessions of 4 %"),
    _partition("40+6x10", _PARTITION_ROWS, "40 % base classes, then 10 sessions of 6 %"),
    _partition("80+2x10", _PARTITION_ROWS, "80 % base classes, then 10 sessions of 2 %"),
    _partition("60+2x20", _PARTITION_ROWS, "60 % base classes, then 20 sessions of 2 %"),
    Experiment(
        "base-strategies",
        "DSR after different base training",
        tuple(
            row
            for label, name in _STRATEGIES.items()
            for row in _beside_control(label, {"recipe": {"objective": name}})
        ),
        table="base_training",
        trains_its_base=True,
        claim="SC is better than CE; SSL and DA each improve base and novel classes further",
    ),
    Experiment(
        "embedding-dim",
        "Dimension of the high-dimensional prototypes",
        tuple(row for dim in (256, 1024, 2048, 3072) for row in _beside_control(str(dim), {"dim": dim}, dim)),
        table="embedding_dim",
        figure="sweep",
        claim="larger is better up to 2048, beyond it brings little",
    ),
    Experiment(
        "lambda",
        "Power of the feature transform",
        _sweep("power", (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0), "lambda"),
        datasets=("mini_imagenet",),
        figure="sweep",
        claim="0.5 is best; above 1 and far below 0.5 it is worse",
    ),
    Experiment(
        "iterations",
        "Online iterations T",
        _sweep("iterations", (0, 1, 5, 10, 20, 50, 100), "T"),
        datasets=("mini_imagenet",),
        figure="sweep",
        claim="20 is best; fewer harm, more cost little accuracy",
    ),
    Experiment(
        "samples",
        "Sampled prototypes for each class: all, base, novel",
        _sweep("samples", (5, 10, 20, 50, 100), "K")
        + _sweep("base_samples", (5, 10, 20, 50, 100), "K_base")
        + _sweep("novel_samples", (5, 10, 20, 50, 100), "K_novel"),
        datasets=("mini_imagenet",),
        figure="sweep",
        claim="equal numbers are best; more than 20 brings little",
    ),
    Experiment(
        "published-protocol",
        "One base network for every class order, as the published code resumes it: a leak",
        (*_methods("DSR"), CONTROL, *(Row(name, name) for name in ("ncm", "slda", "fecam"))),
        table="60+4x10",
        datasets=("cifar100",),
        foreign_orders=True,
        claim="nothing of this kind; its code's README resumes one checkpoint for ten class orders",
    ),
    Experiment(
        "overhead",
        "Time and memory of online learning",
        (
            *_methods("ALICE", "SSRE"),
            Row("SCR", "scr", params={"replay_batch": 10}),  # as the appendix has it for all of them
            *_methods("DVC"),
            Row("OCM", "ocm", params={"replay_batch": 10}),
            *_methods("DSR"),
        ),
        table="overhead",
        metrics=("seconds", "gigabytes"),
        claim="DSR is fastest and smallest; the machines differ, so only the order can be compared",
    ),
    Experiment(
        "convergence",
        "Losses of the two levels",
        _methods("DSR"),
        datasets=ALL_DATASETS,
        figure="losses",
        claim="both levels converge quickly",
    ),
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _LIST}


def find(name: str) -> Experiment:
    """An experiment by name; a wrong name is an error that lists the right ones."""
    known = EXPERIMENTS | BEYOND
    if name not in known:
        raise UnknownNameError(unknown(name, known, "experiment"))
    return known[name]


def plan(experiment: Experiment, choice: Choice) -> list[Planned]:
    """The runs, so ordered that every row of the table has something first: by seed, exemplar-free methods ahead."""
    choice = replace(choice, network=choice.network or experiment.network)
    if choice.network is not None and experiment.trains_its_base:
        raise ValueError(f"{experiment.name} compares base networks and trains each of them: leave --backbone-from out")
    if experiment.foreign_orders and choice.network is None and not choice.small:
        raise ValueError(
            f"{experiment.name} gives one network to every class order: name its file with --backbone-from"
        )
    rows = [row for row in chosen_rows(experiment, choice.methods) if row.exists]
    for row in rows:
        _refuse_clash(experiment, row, choice.settings)
    datasets = ("glyphs",) if choice.small else choice.datasets or experiment.datasets
    cells = [
        (row, memory, dataset, stream)
        for row, dataset in product(sorted(rows, key=lambda row: row.stores_exemplars), datasets)
        for memory in memories_of(experiment, row, choice.memories)
        for stream in chosen_streams(experiment, row, choice.streams)
    ]
    return [
        Planned(row, _job(experiment, row, (memory, dataset, stream), seed, choice))
        for seed in choice.seeds
        for row, memory, dataset, stream in cells
        if row.seeds is None or seed in choice.seeds[: row.seeds]
    ]


def chosen_streams(experiment: Experiment, row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The streams that a row is run on; an empty text stands for the partition's."""
    if not experiment.streams:
        if names:
            raise ValueError(f"{experiment.name} has the stream of its partition alone: leave --streams out")
        return ("",)
    for name in names:
        if name not in experiment.streams:
            raise UnknownNameError(unknown(name, experiment.streams, "stream"))
    return tuple(name for name in row.streams or experiment.streams if not names or name in names)


def chosen_rows(experiment: Experiment, names: Sequence[str]) -> list[Row]:
    """The rows of those names, all if none is given; a name is a row's label or a method, in any case.

    >>> [row.label for row in chosen_rows(find("overhead"), ["scr", "DSR"])]
    ['SCR', 'DSR']
    """
    if not names:
        return list(experiment.rows)
    keys = {row.label.lower(): row for row in experiment.rows}
    found: list[Row] = []
    for name in names:
        if name.lower() in keys:
            found.append(keys[name.lower()])
        elif same := [row for row in experiment.rows if row.method == name]:
            found += same
        elif ":" in name:
            found.append(Row(name, name))
        else:
            raise UnknownNameError(unknown(name, [*keys], f"row of {experiment.name}"))
    return found


def memories_of(experiment: Experiment, row: Row, memories: Sequence[int]) -> tuple[int | None, ...]:
    """The memory sizes of a row; overhead and streams are measured with the method's own."""
    if not row.stores_exemplars or experiment.table == "overhead" or experiment.streams:
        return (None,)
    return tuple(memories)


def _refuse_clash(experiment: Experiment, row: Row, settings: dict[str, JSON]) -> None:
    """What makes a row what it is cannot be set for all of them."""
    for name in sorted(_flat(row.params).keys() & _flat(settings).keys()):
        raise ValueError(f"{experiment.name} varies {name} itself ({row.label!r}): leave --set {name} out")


def _flat(params: dict[str, JSON]) -> dict[str, JSON]:
    recipe = params.get("recipe")
    inner = {f"recipe.{name}": value for name, value in recipe.items()} if isinstance(recipe, dict) else {}
    return {name: value for name, value in params.items() if name != "recipe"} | inner


def _job(experiment: Experiment, row: Row, cell: tuple[int | None, str, str], seed: int, choice: Choice) -> Job:
    memory, dataset, stream = cell
    params: dict[str, JSON] = {}
    recipe: dict[str, JSON] = {}
    if choice.small:
        params |= by_name(row.method, METHODS, "method").check_params | {"backbone": "tiny_resnet18"}
        recipe |= {"epochs": 1, "head_epochs": 1, "compile": False}
    if memory is not None:
        params["memory_size"] = SMALL_MEMORIES.get(memory, memory) if choice.small else memory
    own = row.params if choice.small else unusual(row)
    params = over(over(params, own), choice.settings)
    if choice.epochs is not None:
        recipe["epochs"] = choice.epochs
    if recipe:
        params = over({"recipe": recipe}, params)
    given = choice.network is not None
    # on a given network a seed decides the order of the other classes; in streams also what the learner draws
    orders = given and not stream
    usual = dict(experiment.test_every_of).get(stream, experiment.test_every)
    every = usual if choice.test_every is None else choice.test_every
    job = Job(
        row.method, params, row.preset, dataset, SMALL_DATA if choice.small else {}, choice.root, experiment.partition,
        0 if orders else seed, seed if orders else None, device=choice.device, network_from=choice.network,
        allow_leak=choice.allow_leak, foreign_order=experiment.foreign_orders, arrivals=stream, test_every=every,
        engine=experiment.engine, feature_cache=choice.feature_cache,
    )  # fmt: skip
    return job if given else _on_kept(job, experiment, choice)


def _on_kept(job: Job, experiment: Experiment, choice: Choice) -> Job:
    """The job on the kept network of its class order, where there is one and the method needs no more than features."""
    trains = experiment.trains_its_base or "acc" not in experiment.metrics or choice.epochs is not None
    if choice.networks is None or choice.small or trains:
        return job
    found = kept_network(Path(choice.networks), job.dataset, job.partition, job.seed)
    if found is None or job.chosen().get("weights"):
        return job
    on_it = replace(job, network_from=str(found))
    return on_it if on_it.on_features() else job


def unusual(row: Row) -> dict[str, JSON]:
    """The row's parameters that are not the method's own values: a row without any shares the plain method's run.

    >>> unusual(Row("T = 20", "dsr", params={"iterations": 20})), unusual(Row("T = 5", "dsr", params={"iterations": 5}))
    ({}, {'iterations': 5})
    """
    if not row.params:
        return {}
    usual, recipe = _usual(row.method, row.preset)
    method = by_name(row.method, METHODS, "method")
    found: dict[str, JSON] = {}
    for name, value in row.params.items():
        if name == "recipe" and isinstance(value, dict):
            if any(recipe.get(key) != item for key, item in value.items()):
                found[name] = value
        elif effective(method, name, usual) != value:
            found[name] = value
    return found


@cache
def _usual(method: str, preset: str | None) -> tuple[dict[str, JSON], dict[str, JSON]]:
    """All parameters of a plain learner, and its base recipe."""
    learner = Job(method, preset=preset).learner(32)
    return learner.get_params(), learner.full_recipe.to_json()


def effective(method: type[Learner], name: str, params: Mapping[str, JSON]) -> JSON:
    """A parameter's value; where it is left open, that of the parameter which stands in for it."""
    value = params.get(name)
    return params.get(method.stands_in.get(name, name)) if value is None else value


__all__ = [
    "ALL_DATASETS",
    "BEYOND",
    "CONTROL",
    "EXPERIMENTS",
    "MEMORIES",
    "SMALL_DATA",
    "Choice",
    "Experiment",
    "Planned",
    "Row",
    "chosen_rows",
    "chosen_streams",
    "effective",
    "find",
    "memories_of",
    "plan",
    "unusual",
]
