"""The restricted unpickler: reads arrays of every Python and numpy generation, runs nothing."""

import collections
import pickle
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocl.data.pickles import UnsafePickleError, read_pickle
from nocl.plumbing.files import DamagedFileError
from tests.support.data_layouts import python2_array, python2_dict


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_python_2_numpy_1_pickle_is_read_with_text_keys(tmp_path: Path) -> None:
    array = np.arange(256, dtype=np.uint8).reshape(2, 128)
    content = read_pickle(write(tmp_path / "old", python2_dict({"data": python2_array(array)})))
    assert list(content) == ["data"]
    np.testing.assert_array_equal(content["data"], array)


# from protocol 4 on a name carries its length, so that the older name cannot be put in its place here
@pytest.mark.parametrize(
    ("package", "protocol"), [("numpy.core", p) for p in range(4)] + [("numpy._core", p) for p in range(6)]
)
def test_python_3_pickles_are_read_under_both_numpy_names(tmp_path: Path, package: str, protocol: int) -> None:
    value = {b"data": np.arange(300, dtype=np.uint8).reshape(3, 100), b"labels": [1, 2], "n": np.int64(7)}
    raw = pickle.dumps(value, protocol=protocol)
    raw = raw.replace(b"numpy._core", package.encode())
    content = read_pickle(write(tmp_path / "new", raw))
    assert sorted(content) == ["data", "labels", "n"]
    assert content["labels"] == [1, 2]
    assert content["n"] == 7
    np.testing.assert_array_equal(content["data"], value[b"data"])


class Attack:
    """Unpickled by the standard library, it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.target), "w")


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_is_refused_before_it_runs(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "was-here"
    raw = pickle.dumps({"data": Attack(target)}, protocol=protocol)
    with pytest.raises(UnsafePickleError, match=r"bad.pkl: the pickle asks for .*open"):
        read_pickle(write(tmp_path / "bad.pkl", raw))
    assert not target.exists()
    pickle.loads(raw)["data"].close()
    assert target.exists(), "the attack must work on the ordinary unpickler, or this test shows nothing"


@pytest.mark.parametrize(
    "raw",
    [
        b"cbuiltins\neval\n(V1+1\ntR.",
        b"cos\nsystem\n(Vtrue\ntR.",
        b"cnumpy\nload\n(Vx.npy\ntR.",
        b"cnumpy._core.multiarray\nfromfile\n(Vx\ntR.",
        b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
        b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tVb\ntR.",
        b"Vsomewhere\nQ.",
        b"cnumpy\nndarray\n((K\x01tVO\nVAAAAAAAA\ntR.",  # numpy's own would read the text as a pointer
        b"cnumpy\ndtype\n(VO8\nK\x00K\x01tR.",
        b"cnumpy\ndtype\n(VV8\nK\x00K\x01tR.",
        b"c_codecs\nencode\n(N}V__defaults__\nK\x01stb.",
        b"cnumpy\ndtype\n}V_order\nK\x01sb.",
        pickle.dumps(np.array([1, None], dtype=object)),
        pickle.dumps(np.zeros(2, dtype=[("a", "i4"), ("b", "O")])),
        pickle.dumps(np.zeros(2, dtype=[("a", "i4")])),
        pickle.dumps(np.ma.masked_array([1, 2])),
        pickle.dumps(np.zeros(2, dtype="datetime64[s]")),
        pickle.dumps(collections.OrderedDict(a=1)),
        pickle.dumps(Path("x")),
    ],
)
def test_every_other_global_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(UnsafePickleError):
        read_pickle(write(tmp_path / "p", raw))


@pytest.mark.parametrize("kind", ["?", "u1", "i2", ">i4", "f4", ">f8", "S3", "U4"])
@pytest.mark.parametrize("protocol", range(6))
def test_numbers_and_text_of_every_width_and_order_are_read(tmp_path: Path, kind: str, protocol: int) -> None:
    for array in (np.arange(12).reshape(3, 4).astype(kind), np.asfortranarray(np.arange(6).reshape(2, 3)).astype(kind)):
        found = read_pickle(write(tmp_path / "p", pickle.dumps({"x": array}, protocol=protocol)))["x"]
        assert type(found) is np.ndarray
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)


def test_truncated_pickle_is_called_damaged(tmp_path: Path) -> None:
    raw = pickle.dumps(np.zeros(100, dtype=np.uint8))
    for length in (0, 1, len(raw) // 2, len(raw) - 1):
        with pytest.raises(DamagedFileError, match="not a whole pickle"):
            read_pickle(write(tmp_path / "p", raw[:length]))


def test_shared_dictionaries_are_read_in_time_and_cyclic_ones_refused(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"x": 1}
    for _ in range(15):
        shared = {"a": shared, "b": shared, "c": shared, "d": shared}  # 4 ** 15 if each were visited
    begun = time.monotonic()
    assert set(read_pickle(write(tmp_path / "shared", pickle.dumps(shared)))) == {"a", "b", "c", "d"}
    assert time.monotonic() - begun < 1
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"deeper": deep}
    for value in (cyclic, deep):
        with pytest.raises(UnsafePickleError, match="nested beyond any use"):
            read_pickle(write(tmp_path / "cyclic", pickle.dumps(value)))


@pytest.mark.parametrize("raw", [b"\x80\x02Nr\xff\xff\xff\x0f.", b"Np300000000\n.", b"\x80\x04Nr\xff\xff\xff\x7f."])
def test_a_few_bytes_cannot_ask_for_gigabytes(tmp_path: Path, raw: bytes) -> None:
    """Python's reader makes room for as many remembered objects as the largest number says."""
    path = tmp_path / "p"
    path.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="numbers an object"):
        read_pickle(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_lists_within_themselves_and_shared_lists_are_read_in_time(tmp_path: Path) -> None:
    """Lists are handed on as they are; what is looked into is bounded by the file."""
    shared: list[object] = []
    for _ in range(60):
        shared = [shared, shared]
    cyclic: list[object] = []
    cyclic.append({"inside": cyclic})
    for content in ({"a": shared}, {"b": cyclic}, {"c": (shared, {"d": cyclic})}):
        (tmp_path / "p").write_bytes(pickle.dumps(content))
        assert set(read_pickle(tmp_path / "p")) == set(content)
