"""Attack the package and count what is lost: kills, damaged files, hostile images and requests, disks, slow clients.

    python -m benchmarks.campaign [--only kills files service disk] [--minutes 20]
    python -m benchmarks.campaign --table

Only loopback addresses; every loop is bounded in number and time. Each call adds to benchmarks/results/campaign.json
until the wanted counts are reached, with a seed of its own; ``--table`` writes their sums into docs/reliability.md.
"""
