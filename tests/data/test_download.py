"""Downloads against a server on this machine: resumed, checked, explained; nothing of the user's is lost."""

import hashlib
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from nocl.data import download, load
from nocl.data.download import ARCHIVES, Archive, DownloadError, fetch, get
from nocl.plumbing.files import DamagedFileError
from nocl.plumbing.registry import UnknownNameError
from tests.support.data_layouts import write_cifar100

CONTENT = np.random.default_rng(0).bytes(3_000_000)


class Server(ThreadingHTTPServer):
    """Serves ``content`` at any path; may break off, or know nothing of ranges."""

    content = CONTENT
    breaks_after: int | None = None
    knows_ranges = True
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.starts: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        start = int(asked) if self.server.knows_ranges else 0
        self.server.starts.append(int(asked))
        if self.server.status != 200 or start >= len(self.server.content):
            self.send_error(self.server.status if self.server.status != 200 else 416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(self.server.content)}")
        self.end_headers()
        self.wfile.write(body[: self.server.breaks_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def archive(server: Server, content: bytes = CONTENT, members: tuple[str, ...] = ()) -> Archive:
    return Archive(server.url, hashlib.sha256(content).hexdigest(), len(content), members)


def test_a_whole_download_is_in_place_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(archive(server), tmp_path / "new").read_bytes() == CONTENT
    assert server.starts == [0]
    assert not list(tmp_path.rglob("*.part"))


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 1_000_000
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT
    assert server.starts == [0, 1_000_000, 2_000_000]


def test_what_came_is_kept_for_the_next_command(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 500_000
    with pytest.raises(DownloadError, match=r"1500000 of 3000000 bytes are kept in .*set\.tar\.gz\.part; run"):
        fetch(archive(server), tmp_path)
    server.breaks_after = None
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT
    assert server.starts == [0, 500_000, 1_000_000, 1_500_000]


def test_a_server_without_ranges_makes_it_start_again(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT[:1234])
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT
    assert server.starts == [1234]


def test_a_wrong_download_is_put_aside_and_said(server: Server, tmp_path: Path) -> None:
    for name in ("set.tar.gz.wrong", "set.tar.gz.wrong.1"):
        server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
        with pytest.raises(DamagedFileError, match=rf"kept as .*{name}; nothing of yours was deleted"):
            fetch(archive(server), tmp_path)
        assert (tmp_path / name).read_bytes() == server.content
    server.content = CONTENT
    assert fetch(archive(server), tmp_path).read_bytes() == CONTENT


def test_a_shorter_file_on_the_server_is_recognised(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1000]
    with pytest.raises(DamagedFileError, match="kept as"):
        fetch(archive(server), tmp_path)


def test_a_users_file_with_another_hash_is_left_alone(server: Server, tmp_path: Path) -> None:
    mine = tmp_path / "set.tar.gz"
    mine.write_bytes(b"mine")
    with pytest.raises(DamagedFileError, match="Nothing was deleted; move the file away"):
        fetch(archive(server), tmp_path)
    assert mine.read_bytes() == b"mine"
    assert server.starts == []


def test_a_refusing_server_is_quoted(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(DownloadError, match=r"cannot fetch http://127.*\(503 Service Unavailable\)"):
        fetch(archive(server), tmp_path)


def test_a_closed_network_says_which_file_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/cifar-100-python.tar.gz"
    closed = Archive(url, "ab" * 32, 10, ("a",))
    monkeypatch.setitem(ARCHIVES, "cifar100", closed)
    with pytest.raises(DownloadError) as caught:
        get("cifar100", tmp_path / "root")
    text = str(caught.value)
    assert (
        f"put cifar-100-python.tar.gz (SHA-256 {'ab' * 32}) at {tmp_path / 'root' / 'cifar-100-python.tar.gz'}" in text
    )
    assert "refused" in text


def packed(tmp_path: Path) -> bytes:
    write_cifar100(tmp_path / "source")
    (tmp_path / "source" / "evil").write_text("not wanted")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-100-python", "cifar-100-python")
        tar.add(tmp_path / "source" / "evil", "../evil")
    return (tmp_path / "packed.tar.gz").read_bytes()


def test_get_fetches_unpacks_and_then_the_set_loads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = packed(tmp_path)
    monkeypatch.setitem(ARCHIVES, "cifar100", archive(server, server.content, ARCHIVES["cifar100"].members))
    root = tmp_path / "a" / "root"
    assert [path.name for path in get("cifar100", root)] == ["train", "test", "meta"]
    assert len(load("cifar100", root=root).train) == 6
    assert get("cifar100", root) == []
    assert server.starts == [0]
    assert not list(tmp_path.glob("a/evil")), "only the files of the set leave the archive"


def test_get_adds_what_is_missing_and_overwrites_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = packed(tmp_path)
    monkeypatch.setitem(ARCHIVES, "cifar100", archive(server, content, ARCHIVES["cifar100"].members))
    (tmp_path / "root" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "root" / "cifar-100-python" / "train").write_text("mine")
    (tmp_path / "root" / "set.tar.gz").write_bytes(content)  # put there by hand: no network is needed
    assert [path.name for path in get("cifar100", tmp_path / "root")] == ["test", "meta"]
    assert (tmp_path / "root" / "cifar-100-python" / "train").read_text() == "mine"
    assert server.starts == []


def test_an_archive_without_the_files_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = packed(tmp_path)
    whole = fetch(archive(server, server.content), tmp_path / "root")
    with pytest.raises(DamagedFileError, match="cannot be unpacked"):
        download.unpack(whole, ["cifar-100-python/absent"], tmp_path / "root")


def test_sets_that_cannot_be_fetched_say_what_to_do(tmp_path: Path) -> None:
    for name in ("mini_imagenet", "core50"):
        with pytest.raises(DownloadError, match=str(tmp_path)):
            get(name, tmp_path)
    with pytest.raises(UnknownNameError, match="did you mean 'core50'"):
        get("core51", tmp_path)
