"""The command: which attacks, how many, for how long."""

import argparse
import shlex
import sys
from pathlib import Path

import torch
from benchmarks.campaign import damage, disk, grids, kills, service
from benchmarks.campaign.table import with_table
from benchmarks.campaign.tally import Tally

PARTS = ("kills", "files", "service", "disk")
PAGE = Path("docs/reliability.md")


def kill(tally: Tally, wanted: int) -> None:
    """Kills of every command, in shares that cost about the same time; at least ``wanted`` together."""
    kills.ready()
    tally.attack("kill -9 of the service under requests", "kills", wanted // 4, 25, kills.kill_service)
    tally.attack("kill -9 of the store in lessons", "kills", wanted * 3 // 10, 50, kills.kill_store)
    tally.attack("kill -9 of learn", "kills", wanted * 3 // 20, 25, kills.kill_learning)
    tally.attack("kill -9 of run", "kills", wanted // 5, 25, kills.kill_running)
    tally.attack("kill -9 of processes of a grid", "kills", wanted // 10, 40, grids.kill_grid_processes)
    tally.attack("kill -9 of a grid", "kills", max(2, wanted // 100), 2, grids.kill_grids)


def damage_files(tally: Tally, wanted: int) -> None:
    """Damaged files of every kind; at least ``wanted`` together."""
    for name, share, act in (
        ("damaged models", 0.1, damage.damage_models),
        ("damaged checkpoints", 0.4, damage.damage_checkpoints),
        ("damaged journals", 0.2, damage.damage_journals),
        ("damaged pictures", 0.15, damage.damage_pictures),
        ("damaged and hostile pickles", 0.15, damage.damage_pickles),
    ):
        tally.attack(name, "files", round(share * wanted), max(10, wanted // 50), act)
    tally.attack("files that name code", "files", max(50, wanted // 100), 250, damage.named_code)


def attack_service(tally: Tally, side: int, clients: int) -> None:
    tally.attack(
        "hostile pictures", "uploads", 4 * clients, 4 * clients,
        lambda times, seed: service.on_served(
            lambda port, pid: service.hostile_pictures(port, pid, side, clients)
        ),
    )  # fmt: skip
    tally.attack(
        "hostile requests", "requests", 2000, 1000,
        lambda times, seed: service.on_served(lambda port, pid: service.hostile_requests(port, times, seed)),
    )  # fmt: skip
    tally.attack(
        "slow clients", "slow clients", 520, 520,
        lambda times, seed: service.on_served(lambda port, pid: service.slow_clients(port, times, 80)),
    )  # fmt: skip


def fail_disks(tally: Tally) -> None:
    tally.attack("full disk", "lessons", 300, 100, disk.full_disk)
    tally.attack("failing fsync and write", "failures", 20, 5, disk.failing_disk)


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
        kill(tally, given.kills)
    if "files" in given.only:
        damage_files(tally, given.files)
    if "service" in given.only:
        attack_service(tally, given.side, given.clients)
    if "disk" in given.only:
        fail_disks(tally)


if __name__ == "__main__":
    main()
