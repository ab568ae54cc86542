"""Kill -9 at random moments: the store, the service under HTTP requests with keys, ``learn``, ``run`` and grids.

A victim is forked from this process, which has imported everything, so that a kill costs well under a second. It runs
the same functions as the commands. What it had acknowledged is compared with what is found on disk afterwards.
"""

import contextlib
import http.client
import importlib
import json
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from benchmarks.campaign.tally import Counts
from tests.support.kill_store import Reference, one_round
from tests.support.practice_models import fitted, folder_of, png

from nocl.app.classifier import Classifier
from nocl.methods import make
from nocl.plumbing.files import DamagedFileError
from nocl.run import run
from nocl.streams import class_incremental


def place() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory where there is one: what is tested is the order of writes, not the speed of a disk."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def forked(act: Callable[[], object]) -> int:
    """A process that does this, quietly, and ends."""
    child = os.fork()
    if not child:
        _act_and_exit(act)
    return child


def _act_and_exit(act: Callable[[], object]) -> NoReturn:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    code = 0
    try:
        act()
    except BaseException:  # whatever it was, this process must not go on as its parent
        traceback.print_exc()
        code = 1
    os._exit(code)


def killed_while(act: Callable[[], object], after: float) -> bool:
    """Do this in a process and kill it after a time; whether it was still at work."""
    child = forked(act)
    until = time.monotonic() + after
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def timed(act: Callable[[], object]) -> float:
    """How long it takes in a process of its own."""
    begun = time.monotonic()
    os.waitpid(forked(act), 0)
    return time.monotonic() - begun


# --- the store and the service --------------------------------------------------------------------------------------


def kill_store(times: int, seed: int) -> Counts:
    """Kill the store in the middle of lessons under keys; compare bit for bit with a model that was never killed."""
    draw, lessons = random.Random(seed), 0
    with place() as folder:
        path = Path(folder) / "served.nocl"
        fitted(n=2).save(path)
        reference = Reference(path)
        for _ in range(times):
            lessons = one_round(path, reference, draw)  # raises if a lesson is lost, doubled or differs in a bit
    return {"kills": times, "lessons": lessons, "lost": 0, "doubled": 0}


def kill_service(times: int, seed: int) -> Counts:
    """Kill the service while two clients teach and forget over HTTP; they ask again with the same keys."""
    draw = random.Random(seed)
    with place() as folder:
        path = Path(folder) / "served.nocl"
        fitted(n=2).save(path)
        clients = [_Client(f"client {number}", draw.randrange(2**32)) for number in range(2)]
        total = {"kills": times, "requests answered": 0, "sent again": 0, "lost": 0, "doubled": 0, "errors": 0}
        for _ in range(times):
            port, child = _serving(path)
            threads = [threading.Thread(target=client.teach, args=(port,)) for client in clients]
            for thread in threads:
                thread.start()
            _wait_for_answers(clients, draw.randrange(5))
            time.sleep(draw.uniform(0.0, 0.08))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for thread in threads:
                thread.join()
        port, child = _serving(path)
        for client in clients:
            client.finish(port)
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        found = Classifier.load(path).counts_
        for client in clients:
            total["requests answered"] += client.answered
            total["sent again"] += client.again
            total["errors"] += client.errors
            for name, count in client.expected.items():
                total["lost"] += max(0, count - found.get(name, 0))
                total["doubled"] += max(0, found.get(name, 0) - count)
    return total


def _wait_for_answers(clients: "list[_Client]", more: int) -> None:
    """Until the clients have so many more answers, or some seconds are over."""
    wanted, until = sum(client.answered for client in clients) + more, time.monotonic() + 5
    while sum(client.answered for client in clients) < wanted and time.monotonic() < until:
        time.sleep(0.001)


def _serving(path: Path) -> tuple[int, int]:
    """A service of this model in a process: its port and its process, once it listens."""
    from nocl.app.serve.server import serve

    reading, writing = os.pipe()

    def act() -> None:
        os.close(reading)
        serve(path, port=0, listening=lambda address: os.write(writing, address.encode() + b"\n") and None)

    child = forked(act)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        address = pipe.readline()
    if not address:
        raise AssertionError("the service did not start after a kill")
    return int(address.rstrip().rstrip("/").rpartition(":")[2]), child


class _Client:
    """Teaches classes of its own, forgets one now and then, and sends again under the same key what got no answer."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._draw, self._number = name, random.Random(seed), 0
        self._waiting: tuple[str, str, bytes, dict[str, str], str | None] | None = None
        self.expected: dict[str, int] = {}
        self.answered = self.again = self.errors = 0

    def teach(self, port: int) -> None:
        """Go on until the connection breaks."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                self._ask(connection)
        connection.close()

    def finish(self, port: int) -> None:
        """Get an answer to the last request."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if self._waiting is not None:
            self._ask(connection)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        if self._waiting is None:
            self._waiting = self._next()
        else:
            self.again += 1
        verb, path, body, headers, name = self._waiting
        connection.request(verb, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 429:  # busy: as if it had not been asked
            return
        self._waiting = None
        self.answered += 1
        if answer.status != 200:
            self.errors += 1
        elif verb == "DELETE":
            self.expected[str(name)] = 0
        else:
            self.expected[str(name)] = self.expected.get(str(name), 0) + 1

    def _next(self) -> tuple[str, str, bytes, dict[str, str], str | None]:
        self._number += 1
        key = {"Idempotency-Key": f"{self._name} {self._number}"}
        known = sorted(name for name, count in self.expected.items() if count)
        if known and self._draw.random() < 0.1:
            name = self._draw.choice(known)
            return "DELETE", f"/classes/{name.replace(' ', '%20')}", b"", key, name
        name = f"{self._name} class {self._draw.randrange(3)}"
        form = f'--b\r\nContent-Disposition: form-data; name="label"\r\n\r\n{name}\r\n'.encode()
        form += b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        form += png("red", self._number) + b"\r\n--b--\r\n"
        return "POST", "/learn", form, {**key, "Content-Type": "multipart/form-data; boundary=b"}, name


# --- learn and run --------------------------------------------------------------------------------------------------


def _learn(path: Path, images: Path) -> None:
    from nocl.cli.practice import learn

    learn(path, images, output=None, workers=None, ray=None, watch=False, skip_bad=False, trust=False, device="cpu")


def kill_learning(times: int, seed: int) -> Counts:
    """Kill ``nocl learn``: the file is the old one or the new one, never half of either."""
    draw = random.Random(seed)
    with place() as folder:
        path, images = Path(folder) / "learned.nocl", folder_of(Path(folder) / "images", {"blue": 6, "grey": 6})
        fitted(n=2).save(path)
        before = path.read_bytes()
        usual = timed(lambda: _learn(path, images))
        new_counts = Classifier.load(path).counts_
        total = {"kills": 0, "ended before the kill": 0, "new files": 0, "torn files": 0}
        while total["kills"] < times:
            path.write_bytes(before)
            running = killed_while(lambda: _learn(path, images), draw.uniform(0, 1.1 * usual))
            total["kills" if running else "ended before the kill"] += 1
            try:
                found = Classifier.load(path).counts_
                total["new files"] += found == new_counts
                total["torn files"] += found not in ({"red": 2, "green": 2}, new_counts)
            except (DamagedFileError, OSError):
                total["torn files"] += 1
    return total


def _run(folder: Path) -> None:
    from nocl.checks import easy_images
    from nocl.data import Dataset, ImageSet

    def images(seed: int, n: int) -> ImageSet:
        x, y = easy_images(range(10), n, seed)
        return ImageSet.of(x.numpy(), y.numpy())

    data = Dataset("attacked", images(1, 6), images(2, 3), tuple(map(str, range(10))))
    stream = class_incremental(data, partition="40+30x2", batch_size=4)
    learner = make("ncm", backbone="tiny_resnet18", recipe={"epochs": 1, "compile": False})
    accuracy = run(learner, stream, folder=folder).accuracy
    (folder / "accuracy.json").write_text(json.dumps(accuracy))


def kill_running(times: int, seed: int) -> Counts:
    """Kill ``run`` up to five times, then let it end: the result is that of a run that was never killed."""
    draw = random.Random(seed)
    total = {"kills": 0, "runs": 0, "other results": 0}
    with place() as folder:
        usual = timed(lambda: _run(Path(folder) / "first"))
        expected = (Path(folder) / "first" / "accuracy.json").read_text()
        while total["kills"] < times:
            total["runs"] += 1
            folder_of_run = Path(folder) / str(total["runs"])
            for _ in range(draw.randint(1, 5)):
                total["kills"] += killed_while(lambda at=folder_of_run: _run(at), draw.uniform(0, usual))  # type: ignore[misc]
            timed(lambda at=folder_of_run: _run(at))  # type: ignore[misc]
            ended = folder_of_run / "accuracy.json"
            total["other results"] += not ended.exists() or ended.read_text() != expected
    return total


def ready() -> None:
    """Import and use everything once, so that forked processes have it; no thread may exist before a fork."""
    for name in ("nocl.app.serve.server", "nocl.cli.practice"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    fitted(n=2).predict(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
