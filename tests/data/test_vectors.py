"""Files of embeddings: what is read, and one line for each way in which a file can be wrong."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocl.data.vectors import read_vectors
from nocl.plumbing.files import DamagedFileError

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{"X": X, "y": np.array(list("abab")), **arrays})
    return path


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_bytes_are_text(tmp_path: Path) -> None:
    coded = np.array([name.encode() for name in ("ä", "b", "ä", "b")])
    assert read_vectors(saved(tmp_path / "b.npz", y=coded)).class_names == ("b", "ä")
    named = saved(tmp_path / "c.npz", y=np.array([0, 1, 1, 0]), classes=np.array([b"cup", b"mug"]))
    assert read_vectors(named).names.tolist() == ["cup", "mug", "mug", "cup"]
    numbered = saved(tmp_path / "d.npz", y=np.array([0, 1, 1, 0]), classes=np.array([7, 9]))
    assert read_vectors(numbered).class_names == ("7", "9")
    with pytest.raises(DamagedFileError, match=r"y holds bytes that are not UTF-8"):
        read_vectors(saved(tmp_path / "latin.npz", y=np.array([b"\xe4"] * 4)))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": np.zeros(4, int), "classes": np.array("cup")}, r"whole numbers \[k\], not <U3 \[\]"),
        ({"y": np.zeros(4, int), "classes": np.array([["cup"]])}, r"whole numbers \[k\], not <U3 \[1, 1\]"),
        (
            {"y": np.zeros(4, int), "classes": np.array([0.5, 2])},
            r"classes must be text or whole numbers \[k\], not float64",
        ),
        ({"y": np.array([0, 1, np.nan, 1])}, r"y\[2\] is nan, which is no class"),
    ],
)
def test_labels_that_name_no_class_are_refused(arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=said):
        read_vectors(saved(tmp_path / "f.npz", **arrays))


def test_what_a_file_lacks_is_said_with_what_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", X=X, classes=np.array(["cup"]))
    with pytest.raises(DamagedFileError, match="needs the arrays X and y; it has X, classes"):
        read_vectors(tmp_path / "f.npz")


def test_entries_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X", npy(X))
        archive.writestr("y", npy(np.array(list("abab"))))
    np.testing.assert_array_equal(read_vectors(path).x, X)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X", b"1 2 3")
        archive.writestr("y.npy", npy(np.array(list("abab"))))
    with pytest.raises(DamagedFileError, match="X is not an array"):
        read_vectors(path)
    path.write_bytes(npy(X))
    with pytest.raises(DamagedFileError, match="one array, not an archive"):
        read_vectors(path)


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).random((400, 8), dtype=np.float32), y=np.arange(400))
    whole = bytearray(path.read_bytes())
    for place in range(60, 2000, 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(DamagedFileError, match="not a whole"):
            read_vectors(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**14, 99)})
    for form in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", form) as archive:
            archive.writestr("X.npy", header.getvalue())
            archive.writestr("y.npy", npy(np.array(["a"])))
        with pytest.raises(DamagedFileError, match=r"not a whole \.npz file of plain arrays \(.+\)"):
            read_vectors(path)
