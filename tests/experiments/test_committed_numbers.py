"""A committed comparison, run again on real CIFAR-100 and the network it names: the same numbers to the last digit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nocl.experiments.compare import read_method
from nocl.experiments.job import Job
from nocl.plumbing.files import file_digest

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results" / "arena" / "ten-orders" / "numbers.json"
PARTITION = "60+4x10"


@pytest.fixture(scope="module")
def given() -> Job:
    """A run on the network of the committed table; its features go to the user's cache."""
    network, data = os.environ.get("NOCL_NETWORK", ""), os.environ.get("NOCL_DATA", "")
    if not Path(network).is_file() or not (Path(data) / "cifar-100-python" / "train").is_file():
        pytest.skip("set NOCL_DATA and NOCL_NETWORK, the file cifar100_base60_order0_ce.safetensors")
    return Job("ncm", dataset="cifar100", partition=PARTITION, order_seed=0, network_from=network)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ncm", "slda", "fecam", "acil"])
def test_a_committed_row_run_again_has_the_same_numbers(method: str, given: Job) -> None:
    rows: list[dict[str, Any]] = json.loads(COMMITTED.read_text("utf-8"))["rows"]
    (row,) = [row for row in rows if (row["method"], row.get("partition")) == (method, PARTITION)]
    assert file_digest(Path(str(given.network_from))) == json.loads(COMMITTED.read_text())["features"]["sha256"]
    result = read_method(method, given).run()
    measured = (result.acc, result.base_acc, result.novel_acc, result.hm, result.average)
    committed = tuple(row[name][0] for name in ("acc", "base", "novel", "hm", "average"))
    assert measured == pytest.approx(committed, abs=5e-5)  # half a digit of the committed tables' fourth
