"""The base session that runs share: learned once by one method, anew by an edited one."""

import sys
from pathlib import Path

import numpy as np
import pytest

from nocl.experiments.job import Job
from tests.support.vectors import blobs

OWN = """
from nocl.methods.ncm import NCM

class Mine(NCM):
    def learn(self, z, y):
        super().learn({sign} * z, y)
"""


def test_an_edited_method_learns_its_base_session_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(labels="abcd")
    np.savez(tmp_path / "x.npz", X=x.astype(np.float32), y=y)
    monkeypatch.syspath_prepend(tmp_path)
    cache, found = tmp_path / "cache", []
    for sign in (1, 1, -1):
        (tmp_path / "own_edited.py").write_text(OWN.format(sign=sign))
        sys.modules.pop("own_edited", None)
        job = Job(
            "own_edited:Mine", {"space": "vanilla"}, dataset="embeddings", options={"file": str(tmp_path / "x.npz")},
            partition="50+25x2",
        )  # fmt: skip
        result = job.run(cache=cache)
        found.append((len(list(cache.glob("learned-*.safetensors"))), result.accuracy[0][0]))
    assert found[0] == found[1]
    assert (found[0][0], found[2][0]) == (1, 2)
    assert found[2][1] < found[0][1]  # type: ignore[operator]  # means on the wrong side
