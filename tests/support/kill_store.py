"""Kill a learning process again and again and check that nothing acknowledged is lost. Run by test_store.py.

    python kill_store.py FOLDER KILLS SEED

Each round forks a process that opens the store and learns, telling each acknowledged sequence number through a pipe;
kills it with SIGKILL at a random moment; and opens the store again. The state must be, bit for bit, that of a model
which learned the same lessons and was never killed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from nocl.app.classifier import Classifier
from nocl.app.serve.store import Key, Store
from tests.support.practice_models import COLOURS, fitted, pictures, same_bits, state

NAMES = sorted(COLOURS)


def lesson(number: int) -> tuple[torch.Tensor, str]:
    """The images that make sequence number ``number``."""
    name = NAMES[number % len(NAMES)]
    return pictures(name, 1 + number % 3, seed=number), name


def lessons_in(model: Classifier) -> int:
    """How many lessons a model has had, which began with two images of two classes."""
    images, number = sum(model.counts_.values()) - 4, 0
    while images > 0:
        number += 1
        images -= 1 + number % 3
    assert images == 0, "a lesson was learned in part or twice"
    return number


class Reference:
    """The model that is never killed."""

    def __init__(self, path: Path) -> None:
        self.model, self.number = Classifier.load(path), 0

    def upto(self, number: int) -> Classifier:
        while self.number < number:
            self.number += 1
            self.model.take_in(self.model.apart().partial_fit(*lesson(self.number)))
        return self.model


def learn_until_killed(path: Path, pipe: int, snapshot_bytes: int) -> None:
    store = Store(path, snapshot_bytes=snapshot_bytes)
    os.write(pipe, b"0\n")
    while True:
        number = lessons_in(store.model) + 1
        x, name = lesson(number)
        for _ in range(1 + number % 2):  # sent twice under one key, as a client does that got no answer
            key = Key.of(f"lesson {number}", "learn", name)
            store.answered(key) or store.learn([(x, name)], [key])
        os.write(pipe, f"{number}\n".encode())
        if number % 50 == 0:
            store.snapshot()


def crash(store: Store) -> None:
    """What a kill leaves: files as they are, the lock gone."""
    store._journal.close()
    store._lock.release()


def one_round(path: Path, reference: Reference, draw: random.Random) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        learn_until_killed(path, writing, draw.choice([2_000, 20_000, 1 << 30]))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        acknowledged = [int(pipe.readline()) for _ in range(draw.randrange(6))]  # none: killed while it opens the store
        time.sleep(draw.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged += [int(line) for line in pipe.read().split()]
    store = Store(path)
    sequence = lessons_in(store.model)
    last = acknowledged[-1] if acknowledged else 0
    assert sequence >= last, f"acknowledged {last}, found {sequence}"
    assert last == 0 or sequence <= last + 1, f"acknowledged {last}, found {sequence}: more than was asked"
    expected = reference.upto(sequence)
    assert same_bits(state(store.model), state(expected)), f"another state after {sequence}"
    assert store.model.counts_ == expected.counts_
    store.close() if draw.random() < 0.5 else crash(store)
    return sequence


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    path = folder / "m.nocl"
    fitted(n=2).save(path)
    reference, draw = Reference(path), random.Random(seed)
    learned = [one_round(path, reference, draw) for _ in range(kills)]
    assert learned[-1] > kills, f"only {learned[-1]} lessons: the kills came too early to test anything"
    print(f"{kills} kills, {learned[-1]} lessons, none lost")


if __name__ == "__main__":
    main()
