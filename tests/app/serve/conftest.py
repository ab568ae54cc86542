"""A model file to serve."""

from pathlib import Path

import pytest

from tests.support.practice_models import fitted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted(n=2).save(tmp_path / "m.nocl")
    return tmp_path / "m.nocl"
