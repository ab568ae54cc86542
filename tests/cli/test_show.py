"""Progress on the command line: the time left is of all that is still to come, not of the epoch."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TaskID

from nocl.cli import show
from nocl.cli.show import Bar, PlainLines, TimeLeft
from nocl.plumbing.progress import reporting, track


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_plain_lines_count_the_epochs_to_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(show, "time", clock)
    with reporting(PlainLines()):
        for epoch in range(3):
            for _ in track(range(4), f"base epoch {epoch + 1}/3", following=2 - epoch):
                clock.now += 5
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("base epoch 1/3: 2/4 in 10 s")
    assert lines[0].endswith("about 50 s left")  # two of twelve steps took ten seconds
    assert lines[-1].startswith("base epoch 3/3: 4/4")
    assert "left" not in lines[-1]


def test_the_bar_counts_the_epochs_to_come() -> None:
    clock = Clock()
    progress = Progress(console=Console(file=io.StringIO()), get_time=clock.monotonic)
    bar = Bar(progress)
    task = bar.start("base epoch 1/3", 4, following=2)
    for done in (1, 2):
        clock.now += 5
        bar.show(task, done, 4)
    shown = next(one for one in progress.tasks if one.id == TaskID(task))
    assert shown.speed == pytest.approx(1 / 5)
    assert str(TimeLeft().render(shown)) == "0:00:50"  # ten steps of five seconds
