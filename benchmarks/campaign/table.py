"""The table of docs/reliability.md, made from the counts."""

from pathlib import Path

from benchmarks.campaign.tally import MOST, added, calls_in

BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


def table(out: Path) -> str:
    """One row for each attack: how many, what must be 0, the rest; seeds and commits."""
    rows = ["| attack | counts | seeds | commits |", "|---|---|---|---|"]
    for name, calls in calls_in(out).items():
        counts = added([call["counts"] for call in calls])
        words = ", ".join(f"{key}: {value:,}" for key, value in counts.items())
        seeds = sorted(call["seed"] for call in calls)
        shown = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        commits = ", ".join(sorted({call["commit"][:7] for call in calls}))
        rows.append(f"| {name} | {words} | {shown} | {commits} |")
    return "\n".join(rows)


def with_table(page: str, out: Path) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(out)}\n{END}{rest.split(END)[1]}"


__all__ = ["BEGIN", "END", "MOST", "table", "with_table"]
