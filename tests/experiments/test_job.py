"""One run as a description: its stream, its name, and old descriptions."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nocl.arrivals import PlanError
from nocl.experiments.job import FILE, Job

GLYPHS = {"dataset": "glyphs", "options": {"train_per_class": 2, "test_per_class": 1, "size": 16}}


def test_a_job_opens_the_stream_it_names() -> None:
    job = Job("ncm", arrivals="si_blurry:sessions=3", seed=2, order_seed=1, **GLYPHS)  # type: ignore[arg-type]
    described = job.stream().describe()
    assert described["partition"] == "si_blurry:base=60,sessions=3,disjoint=0.5,blur=0.1"
    assert (described["seed"], described["order_seed"]) == (2, 1)
    assert job.name().startswith("ncm-glyphs-si_blurry-seed2-")
    assert "seed" not in Job("ncm", **GLYPHS).stream().describe()  # type: ignore[arg-type]


def test_streams_and_tests_in_the_middle_are_part_of_the_identity() -> None:
    plain = Job("ncm")
    others = [plain.with_changes(arrivals="shuffled"), plain.with_changes(test_every=100)]
    assert len({job.digest() for job in (plain, *others)}) == 3
    assert plain.digest() == "d9d046e2af035822"  # runs made before there were streams are found again


def test_descriptions_from_before_there_were_streams_are_read(tmp_path: Path) -> None:
    values = {k: v for k, v in asdict(Job("ncm", seed=3)).items() if k not in ("arrivals", "test_every")}
    (tmp_path / FILE).write_text(json.dumps(values))
    assert Job.load(tmp_path) == Job("ncm", seed=3)


def test_a_bad_stream_is_refused_before_data_are_loaded() -> None:
    with pytest.raises(PlanError, match="sessions must be 2 or more"):
        Job("ncm", arrivals="blurry:sessions=1")
    with pytest.raises(ValueError, match="test_every must be 0 or more images, not -1"):
        Job("ncm", test_every=-1)
