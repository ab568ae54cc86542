"""rda after the last session of each of the paper's partitions, on one frozen network.

    python benchmarks/partitions.py --data FOLDER --weights NETWORK

The network knows the 60 base classes of order 0. Other partitions stray from that and say so: with 40 base classes, 20
of the network's classes come again as novel (``leaked``); with 80, the network has never seen 20 of the base classes
(``untrained``). The answers after the last session do not depend on how the classes were split into sessions (they are
exact statistics of the same images), so one learner serves all partitions and only base and novel are told apart
differently. Writes partitions.json.
"""

from bank import Bank, keep, open_bank, parser, percent
from nocl.data.features import trained_classes
from nocl.experiments.on_network import blocks_on_network
from nocl.methods.rda.method import RDA
from nocl.plumbing.types import JSON
from nocl.streams import PARTITIONS, parse_partition

CONTENDERS: dict[str, dict[str, JSON]] = {"default": {}}


def rows(bank: Bank, name: str, params: dict[str, JSON], trained: tuple[int, ...] | None) -> list[JSON]:
    """One learner's scores under every partition."""
    learner = RDA(**params)  # type: ignore[arg-type]
    order = _blocks("60+4x10", bank.n_classes, trained)
    bank.teach_base(learner, order[0])
    bank.teach(learner, order[1:], size=500)
    answers = bank.predict(learner)
    found: list[JSON] = []
    for partition in PARTITIONS:
        blocks = _blocks(partition, bank.n_classes, trained)
        known = set(trained or blocks[0])
        marks: dict[str, JSON] = {
            "leaked": len(known - set(blocks[0])),
            "untrained": len(set(blocks[0]) - known),
        }
        found.append({"settings": name, "partition": partition, **marks, **percent(bank.scores_of(answers, blocks))})
        print(found[-1], flush=True)
    return found


def _blocks(partition: str, n_classes: int, trained: tuple[int, ...] | None) -> list[tuple[int, ...]]:
    return blocks_on_network(parse_partition(partition, n_classes), trained or (), 0)


def main() -> None:
    args = parser(__doc__).parse_args()
    bank, _ = open_bank(args)
    trained = trained_classes(args.weights)
    found = [row for name, params in CONTENDERS.items() for row in rows(bank, name, params, trained)]
    settings: JSON = {name: dict(params) for name, params in CONTENDERS.items()}
    keep(args.out / "partitions.json", "python benchmarks/partitions.py", bank, settings=settings, rows=found)


if __name__ == "__main__":
    main()
