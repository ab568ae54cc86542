"""The command: which attacks, how many, for how long."""

import argparse
import shlex
import sys
from pathlib import Path

import torch
from benchmarks.campaign import damage, disk, grids, kills, service
from benchmarks.campaign.service import on_served
from benchmarks.campaign.table import with_table
from benchmarks.campaign.tally import Attack, Counts, Tally

PARTS = ("kills", "files", "service", "disk")
PAGE = Path("docs/reliability.md")


def killing(wanted: int) -> list[Attack]:
    """Kills of every command, at least ``wanted`` together; few of those that cost most."""
    kills.ready()
    return [
        Attack("kill -9 of the service under requests", "kills", wanted // 4, 20, kills.kill_service),
        Attack("kill -9 of the store in lessons", "kills", wanted * 3 // 10, 25, kills.kill_store),
        Attack("kill -9 of learn", "kills", wanted // 5, 20, kills.kill_learning),
        Attack("kill -9 of run", "kills", wanted // 5, 20, kills.kill_running),
        Attack("kill -9 of processes of a grid", "kills", wanted // 20, 20, grids.kill_grid_processes),
        Attack("kill -9 of a grid", "kills", max(2, wanted // 250), 2, grids.kill_grids),
    ]


def damaging(wanted: int) -> list[Attack]:
    """Damaged files of every kind, at least ``wanted`` together."""
    shares = (
        ("damaged models", 0.1, damage.damage_models),
        ("damaged checkpoints", 0.4, damage.damage_checkpoints),
        ("damaged journals", 0.2, damage.damage_journals),
        ("damaged pictures", 0.15, damage.damage_pictures),
        ("damaged and hostile pickles", 0.15, damage.damage_pickles),
    )
    named = Attack("files that name code", "files", max(50, wanted // 100), 250, damage.named_code)
    made = [Attack(name, "files", round(share * wanted), max(10, wanted // 50), act) for name, share, act in shares]
    return [*made, named]


def serving(side: int, clients: int) -> list[Attack]:
    """Attacks on a served process."""

    def pictures(times: int, _: int) -> Counts:
        return on_served(lambda port, pid: service.hostile_pictures(port, pid, side, clients, times))

    def requests(times: int, seed: int) -> Counts:
        return on_served(lambda port, _: service.hostile_requests(port, times, seed))

    def slow(times: int, _: int) -> Counts:
        return on_served(lambda port, _: service.slow_clients(port, times, 80))

    return [
        Attack("hostile pictures", "uploads", 4 * clients, 4 * clients, pictures),
        Attack("hostile requests", "requests", 2000, 1000, requests),
        Attack("slow clients", "slow clients", 520, 520, slow),
    ]


def failing() -> list[Attack]:
    """Disks that are full or fail."""
    return [
        Attack("full disk", "lessons", 300, 100, disk.full_disk),
        Attack("failing fsync and write", "failures", 20, 4, disk.failing_disk),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/campaign.json"))
    parser.add_argument("--seed", type=int, default=0, help="of the first call; each further one has the next")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kills", type=int, default=1020)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=6300, help="pixels a side of hostile pictures")
    parser.add_argument("--clients", type=int, default=64, help="hostile uploads at once")
    parser.add_argument("--minutes", type=float, default=120, help="begin no further call after this time")
    parser.add_argument("--table", action="store_true", help="only write the table into docs/reliability.md")
    given = parser.parse_args()
    if given.table:
        PAGE.write_text(with_table(PAGE.read_text(), given.out))
        return
    torch.set_num_threads(1)
    tally = Tally(given.out, given.seed, given.minutes, shlex.join(["python -m benchmarks.campaign", *sys.argv[1:]]))
    if "kills" in given.only:
        tally.run(killing(given.kills))
    if "service" in given.only:
        tally.run(serving(given.side, given.clients))
    if "disk" in given.only:
        tally.run(failing())
    if "files" in given.only:
        tally.run(damaging(given.files))


if __name__ == "__main__":
    main()
