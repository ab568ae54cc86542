"""The paper's tables as grids: what is run, and what a user's choice changes."""

import pytest

from nocl.experiments.paper.tables import EXPERIMENTS, Choice, Row, chosen_rows, find, plan, unusual
from nocl.methods import make
from nocl.plumbing.types import JSON

NAMES = (
    "main-60-4-10", "partition-40-6-10", "partition-80-2-10", "partition-60-2-20", "base-strategies", "embedding-dim",
    "lambda", "iterations", "samples", "published-protocol", "overhead", "convergence",
)  # fmt: skip


def test_every_table_and_figure_has_a_grid() -> None:
    assert set(EXPERIMENTS) == set(NAMES)
    with pytest.raises(ValueError, match="did you mean 'lambda'"):
        find("lamda")


def test_what_is_usual_is_the_methods_own_value() -> None:
    learner = make("dsr")
    own = {name: value for name, value in learner.get_params().items() if value is not None and name != "recipe"}
    assert unusual(Row("all", "dsr", params=own)) == {}
    for name in ("base_samples", "novel_samples"):  # left open, they are `samples`
        assert unusual(Row(name, "dsr", params={name: learner.get_params()["samples"]})) == {}
        assert unusual(Row(name, "dsr", params={name: 7})) == {name: 7}
    objective = learner.full_recipe.objective
    assert unusual(Row("same", "dsr", params={"recipe": {"objective": objective}})) == {}
    assert unusual(Row("other", "dsr", params={"recipe": {"objective": "ce"}})) == {"recipe": {"objective": "ce"}}
    assert unusual(Row("preset", "scr", "ft", {"memory_size": 7})) == {"memory_size": 7}


def test_plan_starts_with_one_seed_of_everything_without_exemplars_first() -> None:
    runs = plan(find("main-60-4-10"), Choice(datasets=("cifar100",), methods=("scr", "dsr", "ncm"), seeds=(0, 1)))
    names = [(run.row.label, run.memory, run.job.seed) for run in runs]
    one = [("DSR", None), ("ncm", None), ("SCR", 1000), ("SCR", 2000)]
    assert names == [(*cell, seed) for seed in (0, 1) for cell in one]
    assert runs[2].job.params == {"memory_size": 1000}
    (frozen,) = plan(find("main-60-4-10"), Choice(datasets=("core50",), methods=("scr_ft",), memories=(500,)))
    assert (frozen.job.preset, frozen.job.params, frozen.job.partition) == ("ft", {"memory_size": 500}, "60+4x10")


def test_rows_that_are_the_plain_method_share_its_run() -> None:
    choice = Choice(datasets=("cifar100",))
    digests = []
    for name, label in (
        ("main-60-4-10", "DSR"), ("base-strategies", "SC"), ("embedding-dim", "2048"), ("lambda", "lambda = 0.5"),
        ("iterations", "T = 20"), ("samples", "K = 20"), ("samples", "K_base = 20"), ("convergence", "DSR"),
    ):  # fmt: skip
        digests += [run.job.digest() for run in plan(find(name), choice) if run.row.label == label]
    assert len(digests) == 8
    assert len(set(digests)) == 1
    other = [run.job for run in plan(find("base-strategies"), Choice(datasets=("cifar100",), epochs=7))]
    assert [job.params.get("recipe") for job in other[::2]] == [
        {"epochs": 7, "objective": "ce"}, {"epochs": 7},
        {"epochs": 7, "objective": "sc+ssl"}, {"epochs": 7, "objective": "sc+da"},
    ]  # fmt: skip
    assert [job.params.get("iterations") for job in other] == [None, 0] * 4  # each beside its control
    assert [job.params.get("recipe") for job in other[::2]] == [job.params.get("recipe") for job in other[1::2]]


def test_settings_for_all_rows_leave_each_row_what_it_is() -> None:
    settings: dict[str, JSON] = {"recipe": {"lr": 0.02}, "dim": 64}
    choice = Choice(datasets=("cifar100",), epochs=7, settings=settings)
    jobs = [run.job for run in plan(find("base-strategies"), choice)]
    assert [job.params["recipe"] for job in jobs[::2]] == [
        {"epochs": 7, "objective": "ce", "lr": 0.02}, {"epochs": 7, "lr": 0.02},
        {"epochs": 7, "objective": "sc+ssl", "lr": 0.02}, {"epochs": 7, "objective": "sc+da", "lr": 0.02},
    ]  # fmt: skip
    assert {job.params["dim"] for job in jobs} == {64}
    small = plan(find("base-strategies"), Choice(small=True, settings=settings))
    assert [run.job.learner(32).full_recipe.objective for run in small[::2]] == ["ce", "sc", "sc+ssl", "sc+da"]
    assert {run.job.learner(32).full_recipe.lr for run in small} == {0.02}
    with pytest.raises(ValueError, match="embedding-dim varies dim itself"):
        plan(find("embedding-dim"), choice)
    with pytest.raises(ValueError, match=r"base-strategies varies recipe\.objective itself"):
        plan(find("base-strategies"), Choice(settings={"recipe": {"objective": "ce"}}))


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="trains each of them"):
        plan(find("base-strategies"), Choice(network="network.safetensors"))
    with pytest.raises(ValueError, match="unknown row of overhead 'foo'"):
        chosen_rows(find("overhead"), ["foo"])


def test_small_scale_uses_embedded_data_and_every_row_has_its_own_value() -> None:
    runs = plan(find("embedding-dim"), Choice(small=True))
    assert {run.job.dataset for run in runs} == {"glyphs"}
    assert [run.job.params["dim"] for run in runs] == [dim for dim in (256, 1024, 2048, 3072) for _ in "ab"]
    assert [run.job.params["iterations"] for run in runs[1::2]] == [0] * 4
    assert {run.job.params["backbone"] for run in runs} == {"tiny_resnet18"}
