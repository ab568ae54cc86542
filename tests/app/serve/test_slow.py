"""Clients that send half a request, drip a body, leave, or never read: they are closed, and others are answered."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from nocl.app.serve.app import build  # noqa: E402
from nocl.app.serve.limits import Limits  # noqa: E402
from nocl.app.serve.protocol import settings  # noqa: E402
from nocl.app.serve.store import Store  # noqa: E402
from tests.support.practice_models import fitted  # noqa: E402

LIMITS = Limits(header_seconds=1.0, upload_seconds=1.0, per_address=20, connections=64)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("slow") / "m.nocl"
    fitted(n=2, backbone="reduced_resnet18").save(path)  # large enough for an answer that no buffer takes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(build(Store(path), limits=LIMITS), port=number, log_level="critical", **settings(LIMITS))
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield number
    server.should_exit = True
    thread.join(20)


def half_open(port: int, start: bytes, address: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))
    client.sendall(start)
    return client


def is_closed(client: socket.socket, within: float) -> bool:
    """Whether the other side closes, whatever it says before."""
    client.settimeout(within)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def healthy(port: int, address: str = "127.0.0.1") -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(address, 0))
    client.request("GET", "/healthz")
    return client.getresponse().status == 200


BODY = (
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
)


@pytest.mark.parametrize(
    "start",
    [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", BODY,
     b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea",
     b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf"],
)  # fmt: skip
def test_half_a_request_is_closed_in_time(port: int, start: bytes) -> None:
    client = half_open(port, start)
    begun = time.monotonic()
    assert is_closed(client, 8)
    assert time.monotonic() - begun < 5


def test_one_byte_at_a_time_does_not_buy_time(port: int) -> None:
    client, begun = half_open(port, b"GET /healthz HTTP/1.1\r\n"), time.monotonic()
    for _ in range(60):
        try:
            client.sendall(b"X")
        except ConnectionError:
            break
        time.sleep(0.1)
    assert is_closed(client, 5)
    assert time.monotonic() - begun < 8


def test_many_half_open_connections_leave_room(port: int) -> None:
    held: list[Any] = []
    try:
        for i in range(60):  # of one address: the oldest give way
            held.append(half_open(port, b"GET /hea"))
            if i % 20 == 19:
                assert healthy(port)
        assert healthy(port, "127.0.0.2")
    finally:
        for client in held:
            client.close()


def test_clients_that_do_not_read_are_closed_and_leave_room(port: int) -> None:
    """More than one address may hold ask for the model, which no buffer takes, and read nothing of it."""
    held = []
    for number in range(25):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.bind((f"127.0.0.{3 + number % 2}", 0))
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        held.append(client)
    assert healthy(port)
    limit = time.monotonic() + 20
    while not healthy(port, "127.0.0.3") and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(2.5)
    assert all(is_cut(client) for client in held)


def is_cut(client: socket.socket) -> bool:
    """Whether the answer ends before it is whole: the service gave up on this client."""
    client.settimeout(5)
    got = 0
    try:
        while piece := client.recv(1 << 16):
            got += len(piece)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return got < 4_000_000


def test_a_model_that_comes_too_slowly_is_refused_by_name(port: int) -> None:
    client = half_open(port, b"PUT /model HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n\r\nhalf")
    assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_finished_request_on_a_kept_connection_works_again(port: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(3):
        client.request("GET", "/healthz")
        answer = client.getresponse()
        assert answer.status == 200
        answer.read()
        time.sleep(0.3)


@pytest.mark.parametrize("asked", ["POST /predict", "POST /learn", "PUT /model"])
def test_a_client_that_leaves_during_an_upload_is_no_error(port: int, asked: str) -> None:
    head = f"{asked} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n".encode()
    client = half_open(port, head + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
    time.sleep(0.2)
    client.close()
    line = f'nocl_requests_total{{path="{asked.split()[1]}",status="499"}}'
    limit = time.monotonic() + 5
    while line not in metrics(port):
        assert time.monotonic() < limit
        time.sleep(0.05)


def metrics(port: int) -> str:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", "/metrics")
    return client.getresponse().read().decode()
