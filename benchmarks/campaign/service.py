"""Attacks on a served process over loopback: hostile pictures, wrong requests, clients that are slow in every way."""

import contextlib
import http.client
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.campaign.kills import place
from benchmarks.campaign.tally import Counts
from benchmarks.serve_load import start
from PIL import Image
from tests.support.hostile_images import hostile, saved
from tests.support.practice_models import fitted, png


@contextmanager
def served() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """``nocl serve`` with a small model whose file is too large for a socket's buffers: port and process."""
    with place() as folder:
        path = Path(folder) / "s.nocl"
        fitted(n=2, backbone="reduced_resnet18").save(path)
        process, port = start(path)
        try:
            yield port, process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def post(port: int, content: bytes, path: str = "/predict", timeout: float = 60) -> int:
    """Upload one picture; the status, or 0 if the connection was closed."""
    body = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + content + b"\r\n--b--\r\n"
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        client.request("POST", path, body, {"Content-Type": "multipart/form-data; boundary=b"})
        return client.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        client.close()


def more_hostile(side: int) -> dict[str, bytes]:
    """Every format that Pillow can write here, in the modes that take most memory."""
    turned = Image.Exif()
    turned[0x0112] = 6
    return hostile(side) | {
        "jpeg cmyk": saved(Image.new("CMYK", (side, side)), "JPEG", quality=20, exif=turned),
        "gif frames": saved(Image.new("P", (side, side)), "GIF", save_all=True,
                            append_images=[Image.new("P", (side, side), 1)], transparency=0),
        "tiff cmyk": saved(Image.new("CMYK", (side, side)), "TIFF", compression="tiff_lzw"),
        "tiff 16 bit": saved(Image.new("I;16", (side, side)), "TIFF", compression="tiff_lzw"),
        "png grey alpha": saved(Image.new("LA", (side, side)), "PNG"),
        "webp lossless alpha": saved(Image.new("RGBA", (side, side), (1, 2, 3, 4)), "WEBP", lossless=True, method=0),
        "bmp": saved(Image.new("1", (side, side)), "BMP"),
    }  # fmt: skip


def hostile_pictures(port: int, pid: int, side: int, clients: int, uploads: int) -> Counts:
    """Uploads that are small as files and large in memory, so many at once, with a normal client beside them."""
    forms = [content for content in more_hostile(side).values() if len(content) < 30 << 20]
    before, stop, normal, slowest = _status(pid, "VmRSS"), threading.Event(), [], [0.0]
    _reset_peak(pid)

    def ask_normally() -> None:
        while not stop.wait(0.2):
            begun = time.monotonic()
            normal.append(post(port, png("red"), timeout=60))
            slowest[0] = max(slowest[0], time.monotonic() - begun)

    asking = threading.Thread(target=ask_normally)
    asking.start()
    with ThreadPoolExecutor(clients) as pool:
        jobs = [pool.submit(post, port, forms[i % len(forms)], timeout=300) for i in range(uploads)]
        statuses = [job.result() for job in jobs]
    stop.set()
    asking.join()
    return {
        "uploads": len(statuses), "most at once": clients, "most formats": len(forms), "most pixels a side": side,
        "most MB beyond before": round(_status(pid, "VmHWM") - before), "server errors (500)": statuses.count(500),
        "closed without an answer": statuses.count(0), "normal requests": len(normal),
        "normal requests answered": normal.count(200), "most seconds for a normal one": round(slowest[0] + 0.5),
    }  # fmt: skip


def _status(pid: int, name: str) -> float:
    """A line of /proc/PID/status in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {name}")


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


_LOCAL = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n", b"GET /classes HTTP/1.1\r\nHost: [bad\r\n\r\n",
    b"DELETE /classes/nothing" + _LOCAL + b"Origin: http://[bad\r\n\r\n",
    b"GET /" + b"a" * 70_000 + _LOCAL + b"\r\n", b"POST /predict" + _LOCAL + b"Content-Length: -1\r\n\r\n",
    b"POST /predict" + _LOCAL + b"Content-Length: 99999999999999999999\r\n" + _FORM + b"\r\n",
    b"POST /learn" + _LOCAL + b"Content-Length: 4\r\nContent-Type: multipart/form-data\r\n\r\nabcd",
    b"POST /learn" + _LOCAL + b"Idempotency-Key: " + b"k" * 900 + b"\r\nContent-Length: 0\r\n\r\n",
    b"GET /classes/%00%ff" + _LOCAL + b"\r\n", b"GET http://elsewhere.example/" + _LOCAL + b"\r\n",
    b"PUT /model" + _LOCAL + b"Content-Length: 9\r\n\r\nnot a one", b"POST /undo" + _LOCAL + b"Origin: null\r\n\r\n",
    b"GET /metrics?x=1" + _LOCAL + b"\r\n", b"POST /predict?top=1e9" + _LOCAL + _FORM + b"Content-Length: 0\r\n\r\n",
    b"POST /predict" + _LOCAL + _FORM + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
    b"POST /predict" + _LOCAL + _FORM + b"Content-Length: 9\r\n\r\n--b--\r\n\r\n",
    b"GET /ort/../../etc/passwd" + _LOCAL + b"\r\n", b"GET /classes" + _LOCAL + b"Host: evil.example\r\n\r\n",
]  # fmt: skip


def hostile_requests(port: int, times: int, seed: int) -> Counts:
    """Requests that are wrong, and the same with bytes changed: never a 500, and the service goes on."""
    draw, errors = random.Random(seed), 0
    for number in range(times):
        request = bytearray(REQUESTS[number % len(REQUESTS)])
        for _ in range(draw.randrange(1, 4) if number >= len(REQUESTS) else 0):
            request[draw.randrange(min(len(request), 400))] = draw.randrange(256)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=3) as client:
            client.settimeout(0.3)
            client.sendall(request)
            errors += client.recv(4096).startswith(b"HTTP/1.1 500")
    answers = post(port, png("red")) == 200
    return {"requests": times, "server errors (500)": errors, "services that stopped": int(not answers)}


HALF = b"GET /hea"
BODY = b"POST /predict" + _LOCAL + _FORM + b"Content-Length: 500000\r\n\r\n--b\r\n"
MODEL = b"GET /model" + _LOCAL + b"\r\n"


def slow_clients(port: int, clients: int, seconds: float) -> Counts:
    """Half request lines, bodies of a byte a second, and answers that nobody reads; a normal client beside them."""
    held, normal = [], []
    until = time.monotonic() + seconds
    for number in range(clients):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(5)
        client.bind((f"127.0.1.{1 + number % 9}", 0))
        with contextlib.suppress(OSError):
            client.connect(("127.0.0.1", port))
            client.sendall((HALF, BODY, MODEL)[number % 3])
        held.append(client)
        if number % 40 == 39:
            normal.append(post(port, png("red")))
    while time.monotonic() < until:
        for client in held[1::3]:
            with contextlib.suppress(OSError):
                client.sendall(b"x")
        normal.append(post(port, png("red")))
        time.sleep(1)
    kinds = ("half requests", "slow bodies", "answers not read")
    total = {"slow clients": clients, "normal requests": len(normal), "normal requests answered": normal.count(200)}
    for kind, name in enumerate(kinds):
        total[f"{name} closed"] = sum(_is_closed(client) for client in held[kind::3])
        total[f"{name} left open"] = len(held[kind::3]) - total[f"{name} closed"]
    for client in held:
        client.close()
    return total


def _is_closed(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def on_served(act: Callable[[int, int], Counts]) -> Counts:
    """Start a service, attack it, stop it."""
    with served() as (port, process):
        return act(port, process.pid)
