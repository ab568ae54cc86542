"""Learning in parts on a local Ray; marked ``ray`` and run alone, see ``tests/experiments/test_ray.py``."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from nocl.app.sharded import Learned, Settings, learn_sharded, start_worker
from nocl.app.sources import Source, open_source
from nocl.plumbing.workers import Say, Work
from tests.support.practice_models import folder_of
from tests.support.sharded_models import assert_same, in_one_process, model_file

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@dataclass(frozen=True)
class DiesOnce:
    """The first part ends its process, once."""

    mark: Path

    def __call__(self, settings: Settings) -> Work:
        learn = start_worker(settings)

        def learn_or_die(part: Source, say: Say) -> Learned:
            if not self.mark.exists():
                self.mark.touch()
                os._exit(3)
            return learn(part, say)

        return learn_or_die


def test_a_local_ray_learns_what_one_process_learns_though_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    images = folder_of(tmp_path / "new", {"blue": 5, "grey": 4}, seed=3)
    path = model_file(tmp_path, "rda")
    model, bad = learn_sharded(
        path, open_source(images), workers=2, address="local", part_size=3, prepare=DiesOnce(tmp_path / "died")
    )
    assert (tmp_path / "died").exists()
    assert not bad
    assert_same(model, in_one_process(path, images))
