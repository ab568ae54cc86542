"""Workers that fail on purpose, for the tests of learning in parts. They leave marks in a folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from nocl.app.sharded import Learned, Settings, start_worker
from nocl.app.sources import Source
from nocl.plumbing.workers import Say, Work


@dataclass(frozen=True)
class DiesOnce:
    """The first process to get a second part ends without a word in the middle of it."""

    marks: Path

    def __call__(self, settings: Settings) -> Work:
        learn = start_worker(settings)
        done: list[int] = []

        def learn_or_die(part: Source, say: Say) -> Learned:
            if done and not (self.marks / "died").exists():
                (self.marks / "died").touch()
                say(1)
                os._exit(3)
            done.append(1)
            _note(self.marks, part)
            return learn(part, say)

        return learn_or_die


@dataclass(frozen=True)
class LearnsTwo:
    """After two parts every further one fails, until there is a file ``go``."""

    marks: Path

    def __call__(self, settings: Settings) -> Work:
        learn = start_worker(settings)

        def learn_two(part: Source, say: Say) -> Learned:
            log = self.marks / "learned"
            if log.exists() and log.read_text().count("\n") >= 2 and not (self.marks / "go").exists():
                raise KeyError("interrupted on purpose")
            _note(self.marks, part)
            return learn(part, say)

        return learn_two


def always_dies(settings: Settings) -> Work:
    """Every process ends as soon as it has work."""

    def die(part: Source, say: Say) -> Learned:
        os._exit(3)

    return die


def _note(marks: Path, part: Source) -> None:
    with open(marks / "learned", "a") as file:
        file.write(f"{len(part)}\n")
