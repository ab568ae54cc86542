"""`nocl reproduce streams`: rows that are there are not run again, and closed forms end alike on every stream."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from nocl.experiments.streams import CONTENDERS, Comparison, compare_streams, table
from nocl.nets import build
from nocl.plumbing.files import write_tensors
from nocl.plumbing.registry import UnknownNameError
from nocl.pretrain import WrongBaseError
from tests.support.small_data import small

STREAMS = ("blurry", "shuffled", "repeating")


def asked(folder: Path, **changes: object) -> Comparison:
    network = folder / "network.safetensors"
    if not network.exists():
        state = build("reduced_resnet18").state_dict()
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, network)
    usual = Comparison(
        small(20, per_class=5), network, folder / "out", ("ncm", "foal"), STREAMS, (0,), test_every=10, cache=folder
    )
    return usual._replace(**changes)  # type: ignore[arg-type]


def test_rows_are_run_once_and_end_alike(tmp_path: Path) -> None:
    said = list(compare_streams(asked(tmp_path)))
    assert len(said) == len(STREAMS) * 2
    rows = json.loads((tmp_path / "out" / "streams.json").read_text())
    for name in ("ncm", "foal"):
        assert len({row["a_last"] for row in rows if row["name"] == name}) == 1
    assert all(
        row["images"] == [10, 20, 30, 40] for row in rows if row["stream"] == "shuffled" and row["name"] == "ncm"
    )
    assert {row["params"]["activation"] for row in rows if row["name"] == "foal"} == {"sigmoid"}
    assert list(compare_streams(asked(tmp_path))) == []
    assert len(list(compare_streams(asked(tmp_path, seeds=(0, 1), names=("ncm",))))) == len(STREAMS)
    assert (tmp_path / "out" / "streams.svg").exists()


def test_table_has_means_and_intervals_over_seeds() -> None:
    rows = [
        {"stream": "shuffled", "name": "ncm", "seed": seed, "a_auc": value, "a_last": 0.5, "worst_class": 0.1}
        for seed, value in enumerate((0.4, 0.5, 0.6))
    ]
    lines = table(rows).splitlines()
    assert "| shuffled | 50.0 ± 24.8 |" in lines  # 4.3027 x 0.1 / sqrt(3)
    assert "| ordered | – |" in lines


def test_a_network_that_has_seen_later_classes_is_refused(tmp_path: Path) -> None:
    network = tmp_path / "leaks.safetensors"
    write_tensors(network, dict(build("reduced_resnet18").state_dict()), {"classes": list(range(20))})
    with pytest.raises(WrongBaseError, match="8 classes that come after"):
        list(compare_streams(asked(tmp_path, network=network)))
    with pytest.raises(UnknownNameError, match="did you mean 'ncm'"):
        list(compare_streams(asked(tmp_path, names=("nmc",))))
    assert set(CONTENDERS) >= {"ncm", "slda", "fecam", "ranpac", "acil", "foal", "gacl", "rda", "dsr"}
