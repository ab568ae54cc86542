"""How fast the service is, and that it loses nothing: loopback only, bounded in time and requests.

    python benchmarks/serve_load.py --out benchmarks/results/serve_load.json

Starts ``nocl serve`` on a fresh model in a temporary folder and drives it with concurrent clients over HTTP: predict
alone, learn alone, and both mixed; then teaches until 10,000 images are learned and compares memory before and
after. Every acknowledged lesson is counted and compared with what the model says at the end and what its file says
after the service was stopped.
"""

import argparse
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nocl.app.classifier import Classifier
from nocl.plumbing.files import write_json
from nocl.plumbing.version import __version__

CLASSES = 20


class Client:
    """One kept-alive connection that posts pictures."""

    def __init__(self, port: int, pictures: list[bytes]) -> None:
        import http.client

        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._pictures = pictures

    def post(self, path: str, number: int, count: int, label: str | None = None) -> int:
        parts = [self._pictures[(number + i) % len(self._pictures)] for i in range(count)]
        body = io.BytesIO()
        if label is not None:
            body.write(f'--b\r\nContent-Disposition: form-data; name="label"\r\n\r\n{label}\r\n'.encode())
        for part in parts:
            body.write(b'--b\r\nContent-Disposition: form-data; name="images"; filename="p.png"\r\n\r\n')
            body.write(part + b"\r\n")
        body.write(b"--b--\r\n")
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        self._connection.request("POST", path, body.getvalue(), headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


def drive(port: int, pictures: list[bytes], work: list[tuple[str, int, str | None]], clients: int) -> dict[str, Any]:
    """Do all the work with that many clients; the times of answered requests and what was refused."""
    waiting, lock = iter(enumerate(work)), threading.Lock()
    times: list[float] = []
    learned = refused = 0

    def run() -> None:
        nonlocal learned, refused
        client = Client(port, pictures)
        while True:
            with lock:
                item = next(waiting, None)
            if item is None:
                return
            number, (path, count, label) = item
            start = time.perf_counter()
            status = client.post(path, number, count, label)
            elapsed = time.perf_counter() - start
            with lock:
                if status == 200:
                    times.append(elapsed)
                    learned += count if path == "/learn" else 0
                else:
                    refused += 1

    threads = [threading.Thread(target=run) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    return {
        "requests": len(times), "refused": refused, "images_learned": learned, "seconds": round(seconds, 2),
        "requests_per_second": round(len(times) / seconds, 1),
        "p50_ms": round(1000 * float(np.percentile(times, 50)), 1),
        "p99_ms": round(1000 * float(np.percentile(times, 99)), 1),
    }  # fmt: skip


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError("no VmRSS")


def make_pictures(n: int) -> list[bytes]:
    draw = np.random.default_rng(0)
    made = []
    for _ in range(n):
        small = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        out = io.BytesIO()
        small.resize((64, 64), Image.Resampling.BICUBIC).save(out, "PNG")
        made.append(out.getvalue())
    return made


def start(path: Path) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "NOCL_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-m", "nocl", "serve", str(path), "--port", str(port)], env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1)
            return process, port
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise RuntimeError("the service did not start within two minutes")


def fresh_model(path: Path, method: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (3 * CLASSES, 3, 32, 32), generator=draw, dtype=torch.uint8)
    Classifier(method, backbone="cifar100").fit(x, [f"class {i % CLASSES}" for i in range(len(x))]).save(path)


def measure(path: Path, requests: int, total: int, clients: int) -> dict[str, Any]:
    before_file = sum(Classifier.load(path).counts_.values())
    process, port = start(path)
    pictures, result = make_pictures(64), {}
    labels = [f"class {i}" for i in range(CLASSES)]
    predict = [("/predict", 1, None)] * requests
    learn = [("/learn", 1, labels[i % CLASSES]) for i in range(requests)]
    try:
        drive(port, pictures, predict[:20] + learn[:20], 2)
        acknowledged = 20
        for name, work in (
            ("predict", predict),
            ("learn", learn),
            ("mixed", [w for p in zip(predict, learn) for w in p]),
        ):
            result[name] = drive(port, pictures, work, clients)
            acknowledged += result[name]["images_learned"]
            print(name, json.dumps(result[name]), flush=True)
        memory = [memory_mb(process.pid)]
        while acknowledged < total:
            lessons = min(40, -(-(total - acknowledged) // 50))
            done = drive(port, pictures, [("/learn", 50, labels[i % CLASSES]) for i in range(lessons)], clients)
            acknowledged += done["images_learned"]
            memory.append(memory_mb(process.pid))
        answer = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/classes"))
        said = sum(one["images_learned"] for one in answer["classes"]) - before_file
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    in_file = sum(Classifier.load(path).counts_.values()) - before_file
    result |= {
        "images_acknowledged": acknowledged, "images_in_the_service": said, "images_in_the_file": in_file,
        "lost": acknowledged - min(said, in_file), "memory_mb": memory,
    }  # fmt: skip
    print(json.dumps({name: result[name] for name in list(result)[3:]}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serve_load.json"))
    parser.add_argument("--method", default="rda")
    parser.add_argument("--requests", type=int, default=300, help="of each kind (at most 5000)")
    parser.add_argument("--images", type=int, default=10_000, help="to learn in all (at most 100000)")
    parser.add_argument("--clients", type=int, default=8, help="at once (at most 64)")
    given = parser.parse_args()
    if not (0 < given.requests <= 5000 and 0 < given.images <= 100_000 and 0 < given.clients <= 64):
        parser.error("outside the bounds, which keep a mistake from becoming an attack")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.nocl"
        fresh_model(path, given.method)
        result = measure(path, given.requests, given.images, given.clients)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    write_json(given.out, {
        "command": f"python benchmarks/serve_load.py --method {given.method} --requests {given.requests} "
        f"--images {given.images} --clients {given.clients}",
        "nocl": __version__, "commit": commit, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0], **result,
    })  # fmt: skip
    if result["lost"]:
        raise SystemExit(f"{result['lost']} acknowledged images are missing")


if __name__ == "__main__":
    main()
