"""The short form of the campaign in benchmarks/campaign, and that docs/reliability.md shows its counts."""

import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("forks and reads /proc", allow_module_level=True)

from benchmarks.campaign import damage, disk, grids, kills, service
from benchmarks.campaign.table import with_table
from benchmarks.campaign.tally import Attack, Counts, Tally, added, calls_in

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "campaign.json"
NEVER = (
    "lost", "doubled", "errors", "torn files", "other results", "accepted with other content", "other errors",
    "code run", "accepted", "wrong counts", "learned all the same", "server errors (500)", "services that stopped",
)  # fmt: skip


def nothing_wrong(counts: Counts) -> Counts:
    assert {name: value for name, value in counts.items() if name in NEVER and value} == {}
    return counts


def test_damaged_and_hostile_files_are_refused_or_unchanged() -> None:
    assert nothing_wrong(damage.damage_checkpoints(300, 1))["refused"] > 270
    assert nothing_wrong(damage.damage_models(60, 1))["refused"] > 50
    assert nothing_wrong(damage.damage_journals(100, 1))["refused"] > 10
    assert nothing_wrong(damage.damage_pictures(200, 1))["refused"] > 20
    assert nothing_wrong(damage.damage_pickles(300, 1))["refused"] > 100
    assert nothing_wrong(damage.named_code(40, 1))["files"] == 40


def test_killed_commands_lose_nothing() -> None:
    kills.ready()
    assert nothing_wrong(kills.kill_service(6, 1))["requests answered"] > 0
    nothing_wrong(kills.kill_learning(4, 1))
    nothing_wrong(kills.kill_running(3, 1))


def test_killed_processes_of_a_grid_change_no_result() -> None:
    assert nothing_wrong(grids.kill_grid_processes(1, 1))["kills"] >= 1


def test_a_full_disk_gives_no_wrong_count() -> None:
    assert nothing_wrong(disk.full_disk(9, 1))["met a full disk"] > 0


def test_hostile_pictures_and_requests_leave_the_service_answering() -> None:
    with service.served() as (port, process):
        pictures = nothing_wrong(service.hostile_pictures(port, process.pid, 1500, 8, 24))
        assert pictures["most MB beyond before"] < 600
        assert pictures["normal requests answered"] == pictures["normal requests"]
        nothing_wrong(service.hostile_requests(port, 30, 1))


def test_counts_of_calls_are_kept_and_added_up(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "t.json", 5, 1, "a command")
    act = Attack("a", "kills", 7, 3, lambda times, seed: {"kills": times, "most": seed, "most MB": seed})
    tally.run([act, act._replace(name="b", wanted=2)])
    assert [call["seed"] for call in calls_in(tmp_path / "t.json")["a"]] == [5, 6, 7]
    assert tally.counts("b")["kills"] == 2
    assert tally.counts("a") == {"kills": 7, "most": 18, "most MB": 7}
    Tally(tmp_path / "t.json", 5, -1, "no time").run([act._replace(wanted=99)])
    assert tally.counts("a")["kills"] == 7


def test_the_committed_campaign_found_nothing_and_the_page_shows_it() -> None:
    for name, calls in calls_in(RESULTS).items():
        assert not any(call["dirty"] for call in calls), name
        nothing_wrong(added([call["counts"] for call in calls]))
    page = ROOT / "docs" / "reliability.md"
    assert page.read_text() == with_table(page.read_text(), RESULTS), "run python -m benchmarks.campaign --table"
