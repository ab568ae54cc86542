"""Attack the package and count what is lost: kills, damaged files, hostile images and requests, disks, slow clients.

    python -m benchmarks.campaign [--short] [--seed 0] [--kills 1000] [--files 100000]

Only loopback addresses; every loop is bounded in number and time. The table goes to benchmarks/results/campaign.json.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing as mp
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.serve_load import memory_mb, start
from safetensors.torch import save as tensor_bytes
from tests.support.hostile_images import hostile
from tests.support.kill_store import Reference, one_round
from tests.support.practice_models import fitted, folder_of, pictures, png

from nocl.app import modelfile
from nocl.app.classifier import Classifier
from nocl.methods import make
from nocl.methods._saving import KIND, load, save
from nocl.plumbing.files import DamagedFileError, read_tensors, write_json
from nocl.plumbing.sealed import content_digest, read_sealed
from nocl.results import environment
from nocl.run import run
from nocl.streams import class_incremental

ROOT = Path(__file__).parents[1]
Counts = dict[str, Any]


# --- kills ----------------------------------------------------------------------------------------------------------


def kill_serving(folder: Path, kills: int, draw: random.Random) -> Counts:
    """Kill the durable store in the middle of lessons under keys, and compare with a model that was never killed."""
    path = folder / "served.nocl"
    fitted(n=2).save(path)
    reference = Reference(path)
    lessons = 0
    for _ in range(kills):
        lessons = one_round(path, reference, draw)  # raises if a lesson is lost, doubled or differs in a bit
    return {"kills": kills, "lessons acknowledged or found": lessons, "lost": 0, "doubled": 0}


def killed_while(target: Callable[..., None], arguments: tuple[Any, ...], after: float) -> bool:
    """Run a function in a forked process and kill it after a time; whether it was still running."""
    process = mp.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join(after)
    running = process.is_alive()
    if running and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return running


def _quiet(function: Callable[..., object], *arguments: Any) -> None:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        function(*arguments)


def _learn(path: Path, images: Path) -> None:
    from nocl.cli.practice import learn

    _quiet(
        lambda: learn(
            path, images, output=None, workers=None, ray=None, watch=False, skip_bad=False, trust=False, device="cpu"
        )
    )


def kill_learning(folder: Path, kills: int, draw: random.Random) -> Counts:
    """Kill ``nocl learn``: the file is the old one or the new one, never half of either."""
    path, images = folder / "learned.nocl", folder_of(folder / "images", {"blue": 12, "grey": 12})
    fitted(n=2).save(path)
    before = path.read_bytes()
    _learn(path, images)  # loads what the forked processes then have
    path.write_bytes(before)
    begun = time.perf_counter()
    _learn(path, images)
    usual, torn, running, new = time.perf_counter() - begun, 0, 0, 0
    old_counts, new_counts = {"red": 2, "green": 2}, Classifier.load(path).counts_
    for _ in range(kills):
        path.write_bytes(before)
        running += killed_while(_learn, (path, images), draw.uniform(0, 1.2 * usual))
        try:
            found = Classifier.load(path).counts_
            new += found == new_counts
            torn += found not in (old_counts, new_counts)
        except (DamagedFileError, OSError):
            torn += 1
    return {"kills": kills, "killed while running": running, "new files": new, "torn files": torn}


def _run(folder: Path | None) -> Any:
    from nocl.checks import easy_images
    from nocl.data import Dataset, ImageSet

    def images(seed: int, n: int) -> ImageSet:
        x, y = easy_images(range(10), n, seed)
        return ImageSet.of(x.numpy(), y.numpy())

    data = Dataset("attacked", images(1, 6), images(2, 3), tuple(map(str, range(10))))
    stream = class_incremental(data, partition="40+30x2", batch_size=4)
    learner = make("ncm", backbone="tiny_resnet18", recipe={"epochs": 0})
    return run(learner, stream, folder=folder).accuracy


def kill_running(folder: Path, kills: int, draw: random.Random) -> Counts:
    """Kill ``run`` and let it go on: the result is that of a run that was never killed."""
    begun = time.perf_counter()
    expected = _run(None)
    usual, wrong, running = time.perf_counter() - begun, 0, 0
    for number in range(kills):
        place = folder / f"run{number}"
        running += killed_while(_run, (place,), draw.uniform(0, 1.2 * usual))
        wrong += _run(place) != expected
    return {"kills": kills, "killed while running": running, "other results": wrong}


# --- files ----------------------------------------------------------------------------------------------------------


def mutated(whole: bytes, draw: np.random.Generator) -> bytes:
    """A copy with one thing wrong: cut, a flipped bit, a stretch of zeros or noise, another length, a repetition."""
    content, kind = bytearray(whole), int(draw.integers(7))
    length, position = struct.unpack("<Q", whole[:8])[0], int(draw.integers(len(whole)))
    if kind == 0:
        return whole[:position]
    if kind == 1:
        content[position] ^= 1 << int(draw.integers(8))
    elif kind == 2:
        content[8 + position % length] ^= 1 << int(draw.integers(8))
    elif kind == 3:
        content[:8] = struct.pack("<Q", int(draw.integers(2**62)))
    elif kind == 4:
        content[position : position + 512] = bytes(len(content[position : position + 512]))
    elif kind == 5:
        content[position : position + 64] = draw.bytes(len(content[position : position + 64]))
    else:
        return whole + whole[position:]
    return bytes(content)


def damage_files(folder: Path, files: int, seed: int) -> Counts:
    """Damaged model files and checkpoints: refused, or what they hold is what it was."""
    fitted(n=2).save(folder / "m.nocl")
    learner = make("rda", backbone="tiny_resnet18")
    learner.observe(pictures("red", 3), torch.tensor([1, 1, 2]))
    save(learner, folder / "c.safetensors")
    draw, total = (
        np.random.default_rng(seed),
        {"files": 0, "refused": 0, "unchanged in meaning": 0, "silently accepted": 0, "other errors": 0},
    )
    for source, kind in ((folder / "m.nocl", modelfile.KIND), (folder / "c.safetensors", KIND)):
        tensors, outer = read_tensors(source)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("network.")}  # small: thousands
        header: Any = outer["nocl"]
        header["digest"] = content_digest(header, kept)
        whole = tensor_bytes(kept, metadata={"nocl": json.dumps(header)})
        place = folder / "damaged"
        for _ in range(files // 2):
            content = mutated(whole, draw)
            place.write_bytes(content)
            total["files"] += 1
            try:
                read_header, read = read_sealed(place, kind)
            except (DamagedFileError, OSError):
                total["refused"] += 1
            except Exception:  # counted as a failure of the reader
                total["other errors"] += 1
            else:
                same = read_header == header and read.keys() == kept.keys()
                same = same and all(torch.equal(read[name], kept[name]) for name in kept)
                total["unchanged in meaning" if same else "silently accepted"] += 1
    return total


def named_code(folder: Path) -> Counts:
    """Files whose digest fits and that name code: it is not run."""
    learner = make("ncm", backbone="tiny_resnet18")
    learner.observe(pictures("red", 2), torch.tensor([1, 2]))
    save(learner, folder / "c.safetensors")
    tensors, outer = read_tensors(folder / "c.safetensors")
    ran = tried = 0
    for name in ("antigravity:fly", "os:abort", "this:s", "sys:exit"):
        for place in ("method", "backbone", "objective"):
            header: Any = json.loads(json.dumps(outer["nocl"]))
            if place == "method":
                header["method"] = name
            else:
                header["params"]["backbone" if place == "backbone" else "recipe"] = (
                    name if place == "backbone" else {"objective": name}
                )
            header["digest"] = content_digest(header, tensors)
            (folder / "x").write_bytes(tensor_bytes(tensors, metadata={"nocl": json.dumps(header)}))
            tried += 1
            try:
                load(folder / "x")
                ran += 1
            except DamagedFileError:
                ran += "antigravity" in sys.modules or "this" in sys.modules
    return {"files": tried, "code run": ran}


# --- the service ----------------------------------------------------------------------------------------------------


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


def hostile_images(port: int, pid: int, side: int, clients: int) -> Counts:
    """Many uploads at once of pictures that are small as files and large in memory, and a normal client beside them."""
    before, peak, stop = memory_mb(pid), [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], memory_mb(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    worst, normal, statuses = 0.0, [], []
    forms = list(hostile(side).items())
    with ThreadPoolExecutor(clients) as pool:
        jobs = [pool.submit(post, port, forms[i % len(forms)][1]) for i in range(clients)]
        limit = time.monotonic() + 120
        while not all(job.done() for job in jobs) and time.monotonic() < limit:
            begun = time.monotonic()
            normal.append(post(port, png("red"), timeout=30))
            worst = max(worst, time.monotonic() - begun)
            time.sleep(0.1)
        statuses = [job.result() for job in jobs]
    stop.set()
    watcher.join()
    return {
        "uploads at once": clients, "formats": len(forms), "side": side, "memory before (MB)": before,
        "most memory beyond (MB)": round(peak[0] - before), "server errors": sum(s >= 500 for s in statuses),
        "normal client": f"{normal.count(200)} of {len(normal)} answered, at most {worst:.1f} s",
    }  # fmt: skip


_LOCAL = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n", b"GET /classes HTTP/1.1\r\nHost: [bad\r\n\r\n",
    b"DELETE /classes/red" + _LOCAL + b"Origin: http://[bad\r\n\r\n",
    b"GET /" + b"a" * 70_000 + _LOCAL + b"\r\n", b"POST /predict" + _LOCAL + b"Content-Length: -1\r\n\r\n",
    b"POST /predict" + _LOCAL + b"Content-Length: 99999999999999999999\r\n" + _FORM + b"\r\n",
    b"POST /learn" + _LOCAL + b"Content-Length: 4\r\nContent-Type: multipart/form-data\r\n\r\nabcd",
    b"POST /learn" + _LOCAL + b"Idempotency-Key: " + b"k" * 900 + b"\r\nContent-Length: 0\r\n\r\n",
    b"GET /classes/%00%ff" + _LOCAL + b"\r\n", b"GET http://elsewhere.example/" + _LOCAL + b"\r\n",
]  # fmt: skip


def hostile_requests(port: int, times: int, draw: random.Random) -> Counts:
    """Requests that are wrong, and the same with bytes changed: never a 500, and the service goes on."""
    errors = sent = 0
    for number in range(times):
        request = bytearray(REQUESTS[number % len(REQUESTS)])
        if number >= len(REQUESTS):
            request[draw.randrange(len(request))] = draw.randrange(256)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=3) as client:
            client.settimeout(0.5)
            client.sendall(request)
            sent += 1
            errors += client.recv(4096).startswith(b"HTTP/1.1 500")
    return {"requests": sent, "server errors (500)": errors, "still answers": post(port, png("red")) == 200}


def slow_clients(port: int, clients: int, seconds: float) -> Counts:
    """Connections that send half a request line and wait."""
    held, answered, tried = [], 0, 0
    begun = time.monotonic()
    for number in range(clients):
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
        with contextlib.suppress(OSError):
            client.sendall(b"GET /hea")
        held.append(client)
        if number % 50 == 49:
            tried += 1
            answered += post(port, png("red")) == 200
    while time.monotonic() - begun < seconds:
        time.sleep(0.2)
    closed = 0
    for client in held:
        client.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            try:
                while client.recv(4096):
                    pass
                closed += 1
            except ConnectionError:
                closed += 1
        client.close()
    return {"half requests": clients, "closed in time": closed, "normal client answered": f"{answered} of {tried}"}


def failing_disk(folder: Path, times: int) -> Counts:
    """The kernel refuses fsync, then pwrite, to SQLite: the store says so, stops, and has lost nothing."""
    right = 0
    for number in range(times):
        path = folder / f"failing{number}.nocl"
        fitted(n=2).save(path)
        call = ("fsync", "write")[number % 2]
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "support" / "failing_disk.py"), str(path), call],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        right += done.returncode == 0 and _served(path) == {"red": 2, "green": 2, "blue": 3}
    return {"failures": times, "stopped and lost nothing": right}


def full_disk(folder: Path, times: int) -> Counts:
    """SQLite is given no page more: an error means that nothing was learned, and a retry counts once."""
    from nocl.app.serve.store import Key, Store

    path = folder / "full.nocl"
    fitted(n=2).save(path)
    store, wrong, errors, wanted = Store(path), 0, 0, 0
    for number in range(times):
        base = store._journal._base
        pages = base.execute("PRAGMA page_count").fetchone()[0]
        base.execute(f"PRAGMA max_page_count={pages + number % 2}")
        key = Key.of(str(number), "learn")
        lessons = [(pictures("blue", 1, number), "blue"), *((pictures("grey", 1), f"n{i}") for i in range(5))]
        for _ in range(2):
            try:
                if store.answered(key) is None:
                    store.learn(lessons, [key])
                    wanted += 1
                break
            except OSError:
                errors += 1
                wrong += store.model.counts_.get("blue", 0) != wanted
                base.execute("PRAGMA max_page_count=1000000")
        wrong += store.model.counts_["blue"] != wanted
    store._journal.close()
    store._lock.release()
    return {"lessons": times, "met a full disk": errors, "wrong counts": wrong + (_served(path)["blue"] != wanted)}


def _served(path: Path) -> dict[str, int]:
    from nocl.app.serve.store import Store

    store = Store(path)
    try:
        return store.model.counts_
    finally:
        store.close()


def serving(folder: Path, attack: Callable[..., None], short: bool, draw: random.Random) -> None:
    """The attacks on a running service."""
    fitted(n=2).save(folder / "s.nocl")
    process, port = start(folder / "s.nocl")
    try:
        attack("hostile images", hostile_images, port, process.pid, 1500 if short else 6300, 16 if short else 64)
        attack("hostile requests", hostile_requests, port, 26 if short else 500, draw)
        attack("slow clients", slow_clients, port, 80 if short else 520, 11)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def campaign(folder: Path, given: argparse.Namespace, note: Callable[[str, Counts], None]) -> None:
    """All attacks, or those of one part; each is noted as soon as it is over."""
    draw, share, short = random.Random(given.seed), max(1, given.kills // 4), given.short

    def attack(name: str, function: Callable[..., Counts], *arguments: Any) -> None:
        begun = time.monotonic()
        note(name, function(*arguments) | {"seconds": round(time.monotonic() - begun)})

    if given.only in (None, "files"):
        attack("damaged files", damage_files, folder, given.files, given.seed)
        attack("files that name code", named_code, folder)
    if given.only in (None, "service"):
        serving(folder, attack, short, draw)
    if given.only in (None, "disk"):
        attack("full disk", full_disk, folder, 6 if short else 60)
        attack("failing fsync and write", failing_disk, folder, 2 if short else 6)
    if given.only in (None, "kills"):
        attack("kill -9 of the store", kill_serving, folder, given.kills - 2 * share, draw)
        attack("kill -9 of learn", kill_learning, folder, share, draw)
        attack("kill -9 of run", kill_running, folder, share, draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/campaign.json"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=("files", "service", "disk", "kills"), help="one part; the others stay")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--files", type=int, default=100_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    where, memory = environment(torch.device("cpu")), Path("/dev/shm")
    asked = [f"--kills {given.kills}", f"--files {given.files}", f"--seed {given.seed}", "--short" * given.short]
    command = " ".join(["python -m benchmarks.campaign", f"--only {given.only}" if given.only else "", *asked])

    def note(name: str, counts: Counts) -> None:
        print(f"{name}: {json.dumps(counts)}", flush=True)
        before = json.loads(given.out.read_text())["attacks"] if given.out.exists() else {}
        about = {"command": command, "environment": where, "load_average": round(os.getloadavg()[0], 1)}
        write_json(given.out, {"attacks": before | {name: counts | about}})

    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        campaign(Path(folder), given, note)


if __name__ == "__main__":
    main()
