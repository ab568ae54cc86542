"""Data sets by name: wrong names and options are explained, nothing heavy is imported early."""

import subprocess
import sys
from pathlib import Path

import pytest

from nocl.data import DATASETS, MissingDataError, default_root, load


def test_unknown_name_lists_the_data_sets_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"data set 'cifar-100'; did you mean 'cifar100'.*mini_imagenet"):
        load("cifar-100")


def test_unknown_option_lists_the_options() -> None:
    with pytest.raises(ValueError, match=r"data set folder 'sise'; did you mean 'size'\?.*seed"):
        load("folder", sise=32)


def test_absent_files_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no train, test, meta; `nocl data get cifar100 --root"):
        load("cifar100", root=tmp_path)


def test_root_is_the_environment_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOCL_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("NOCL_DATA")
    assert default_root().parts[-2:] == ("nocl", "data")


def test_importing_the_registry_imports_no_fonts() -> None:
    code = "import nocl.data, sys; print(*sorted({'matplotlib', 'rich', 'kornia'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == []
    assert set(DATASETS) == {"glyphs", "cifar100", "mini_imagenet", "core50", "folder", "embeddings"}


OWN = """
import numpy as np
from nocl.data import Dataset, ImageSet

def squares(*, root, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
    whole = ImageSet.of(images, np.arange(20) % 2)
    return Dataset(str(root), whole.subset(np.arange(15)), whole.subset(np.arange(15, 20)), ("a", "b"), {"seed": seed})
"""


def test_a_function_of_ones_own_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_squares.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    dataset = load("own_squares:squares", root=tmp_path, seed=3)
    assert dataset.name == str(tmp_path)
    assert dataset.options == {"seed": 3}
    with pytest.raises(ValueError, match="option of data set own_squares:squares 'sed'; did you mean 'seed'"):
        load("own_squares:squares", sed=3)
