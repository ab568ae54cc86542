"""The table of a comparison."""

from dataclasses import replace
from pathlib import Path

import torch

from nocl import nets
from nocl.experiments.compare import bound
from nocl.experiments.job import Job
from nocl.experiments.report.compare import comparison_numbers, comparison_table
from nocl.plumbing.files import write_tensors
from tests.support.given_network import PARTITION, method


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def test_table_is_sorted_under_the_bound_with_leaks_marked(like: Job, tmp_path: Path) -> None:
    jobs = [
        replace(method(like, name), partition=partition, order_seed=order, allow_leak=True)
        for name in ("ncm", "slda")
        for partition in (PARTITION, "40+20x3")
        for order in (0, 1)
    ]
    results = [job.run() for job in jobs]
    top = bound(like, tmp_path / "probe.json")
    assert bound(like, tmp_path / "probe.json") == top  # found again
    table = comparison_table(results, top)
    clean, leaking = table.split("## ")[2], table.split("## ")[1]
    assert "LEAK: the network was trained on 2 of the classes" in leaking
    assert "LEAK" not in clean
    rows = table_lines(clean)
    assert rows[0].startswith("| joint linear probe")
    accs = [float(line.split("|")[2].split("±")[0]) for line in rows[1:]]
    assert len(accs) == 2
    assert accs == sorted(accs, reverse=True)
    assert all("2 orders, 1 network" in row for row in rows[1:])
    assert all("±" not in row.split("|")[2] for row in rows[1:])  # the order changes nothing after the last session
    numbers = comparison_numbers(results, top)
    assert sum(isinstance(row, dict) and len(row["acc"]) == 2 for row in numbers) == 4  # type: ignore[arg-type]


def test_rows_on_several_networks_have_an_interval_over_networks(like: Job, tmp_path: Path) -> None:
    results = []
    for seed in (3, 4):
        order = torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist()
        path = tmp_path / f"{seed}.safetensors"
        write_tensors(path, nets.build("tiny_resnet18", seed=seed).state_dict(), {"classes": order[:6]})
        results.append(replace(like, network_from=str(path), feature_cache=str(tmp_path)).run())
    (row,) = table_lines(comparison_table(results))
    assert "| 2 networks |" in row
    assert "±" in row


def test_methods_on_other_stages_stand_in_the_same_table_with_what_was_chosen(like: Job) -> None:
    results = [like.run(), method(like, "slda", stages=[3, 4]).run()]
    table = comparison_table(results)
    assert table.count("## ") == 1
    assert "| slda (stages=" in table
    assert "| ncm |" in table
