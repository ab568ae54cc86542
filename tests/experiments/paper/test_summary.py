"""The summary of committed results."""

from pathlib import Path

import pytest

from nocl.experiments.paper.summary import BEGIN, END, Kept, committed, summary, write_summary
from nocl.experiments.paper.tables import EXPERIMENTS
from tests.support.paper_cases import dsr


def test_summary_replaces_its_part_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "REPRODUCTION.md"
    page.write_text("# Reproduction\n\nBy hand.\n")
    write_summary([Kept(dsr(0.5), "somewhere")], page)
    page.write_text(page.read_text() + "\nAlso by hand.\n")
    write_summary([Kept(dsr(0.3), "somewhere"), Kept(dsr(0.2, dim=64, power=0.1), "lambda")], page)
    text = page.read_text()
    assert text.startswith("# Reproduction\n\nBy hand.\n")
    assert text.endswith("\nAlso by hand.\n")
    assert text.count(BEGIN) == text.count(END) == 1
    assert "30.0 (30.0/30.0)" in text
    assert "50.0 (50.0/50.0)" not in text
    assert text.count("20.0 (20.0/20.0)") == 1  # under lambda alone
    assert text.count("### Never run") == 1  # a list at the end
    assert "- on mini_imagenet: everything\n" in text
    assert "- base-strategies: CE, CE T=0, SC T=0, SC+SSL, SC+SSL T=0, SC+DA, SC+DA T=0\n" in text
    assert "- published-protocol: everything\n" in text
    assert summary([]).count(": everything") == len(EXPERIMENTS) + 3  # data sets
    page.write_text(text.replace(END, ""))
    with pytest.raises(ValueError, match="damaged"):
        write_summary([], page)


def test_committed_results_of_today_are_read_with_their_old_descriptions() -> None:
    kept = committed(Path(__file__).parents[3] / "benchmarks" / "results")
    assert len(kept) > 100
    text = summary(kept)
    assert "3 networks" in text  # an interval is over networks, not over orders on one
    assert all("LEAK" in line for line in text.splitlines() if "3 orders, 1 network" in line)
    assert "± 0.0" not in text
    assert "LEAK: trained on 20 novel classes" in text
