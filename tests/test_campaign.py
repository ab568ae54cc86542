"""The short form of the campaign in benchmarks/campaign.py."""

import random
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("forks and reads /proc", allow_module_level=True)

from benchmarks import campaign


def test_damaged_files_are_refused_or_unchanged(tmp_path: Path) -> None:
    counts = campaign.damage_files(tmp_path, 1000, seed=1)
    assert counts["files"] == 1000
    assert counts["silently accepted"] == counts["other errors"] == 0
    assert counts["refused"] > 900
    assert campaign.named_code(tmp_path)["code run"] == 0


def test_killed_commands_leave_whole_files_and_the_same_results(tmp_path: Path) -> None:
    assert campaign.kill_learning(tmp_path, 4, random.Random(1))["torn files"] == 0
    assert campaign.kill_running(tmp_path, 3, random.Random(1))["other results"] == 0


def test_a_full_disk_gives_no_wrong_count(tmp_path: Path) -> None:
    counts = campaign.full_disk(tmp_path, 6)
    assert counts["met a full disk"] > 0
    assert counts["wrong counts"] == 0


def test_hostile_images_and_requests_leave_the_service_answering(tmp_path: Path) -> None:
    campaign.fitted(n=2).save(tmp_path / "s.nocl")
    process, port = campaign.start(tmp_path / "s.nocl")
    try:
        images = campaign.hostile_images(port, process.pid, 1500, 16)
        assert images["server errors"] == 0
        assert images["most memory beyond (MB)"] < 600
        requests = campaign.hostile_requests(port, 26, random.Random(1))
        assert requests["server errors (500)"] == 0
        assert requests["still answers"]
    finally:
        process.terminate()
        process.wait(60)
