"""Damaged and hostile files: models, checkpoints, journals, pictures, pickles. Read by the functions that users call.

A model, checkpoint or journal is refused, or what it holds is what it was. A picture or a pickle has no digest: it is
refused or read as what its bytes say; what counts is that nothing else happens, above all that no code runs.
"""

import json
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.campaign.kills import place
from benchmarks.campaign.tally import Counts
from PIL import Image
from safetensors.torch import save as tensor_bytes
from tests.support.hostile_images import saved
from tests.support.practice_models import fitted, image_of, pictures, png, same_bits, state

from nocl.app.classifier import Classifier
from nocl.app.serve.journal import Journal
from nocl.app.serve.store import Key, Store, journal_of
from nocl.data.decode import BadImageError, decode
from nocl.data.pickles import UnsafePickleError, read_pickle
from nocl.methods import make
from nocl.methods._saving import load, save
from nocl.plumbing.files import DamagedFileError, file_digest, read_tensors
from nocl.plumbing.sealed import content_digest

Draw = np.random.Generator
Read = Callable[[Path], bool]  # whether the file holds what it held before
REFUSALS = (DamagedFileError, UnsafePickleError, BadImageError, OSError)


def mutated(whole: bytes, draw: Draw) -> bytes:
    """A copy with one thing wrong: cut, a flipped bit, zeros, noise, a swapped or repeated stretch, a large number."""
    content, kind, position = bytearray(whole), int(draw.integers(9)), int(draw.integers(len(whole)))
    if kind == 0:
        return whole[:position]
    if kind == 1:
        content[position] ^= 1 << int(draw.integers(8))
    elif kind == 2:  # near the front, where headers are
        content[position % min(len(whole), 600)] ^= 1 << int(draw.integers(8))
    elif kind == 3:
        content[:8] = int(draw.integers(2**62)).to_bytes(8, "little")
    elif kind == 4:
        content[position : position + 512] = bytes(len(content[position : position + 512]))
    elif kind == 5:
        content[position : position + 64] = draw.bytes(len(content[position : position + 64]))
    elif kind == 6:
        return whole + whole[position:]
    elif kind == 7:
        other = int(draw.integers(len(whole)))
        content[position : position + 16], content[other : other + 16] = (
            content[other : other + 16], content[position : position + 16],
        )  # fmt: skip
    else:
        content[position : position + 4] = b"\xff\xff\xff\x7f"[: len(content[position : position + 4])]
    return bytes(content)


def _damage(times: int, seed: int, sources: dict[str, bytes], path: Path, read: Read) -> Counts:
    draw, names = np.random.default_rng(seed), sorted(sources)
    total = {"files": 0, "refused": 0, "unchanged in meaning": 0, "accepted with other content": 0, "other errors": 0}
    for number in range(times):
        whole = sources[names[number % len(names)]]
        path.write_bytes(mutated(whole, draw))
        total["files"] += 1
        try:
            same = read(path)
            total["unchanged in meaning" if same else "accepted with other content"] += 1
        except REFUSALS:
            total["refused"] += 1
        except Exception as error:  # counted: the reader failed in a way it does not promise
            print("other error:", type(error).__name__, error, file=sys.stderr)
            total["other errors"] += 1
    return total


def damage_models(times: int, seed: int) -> Counts:
    """Model files with their network."""
    model = fitted(n=2)
    right, content = state(model), model.to_bytes()

    def read(path: Path) -> bool:
        found = Classifier.load(path)
        return same_bits(right, state(found)) and found.counts_ == model.counts_

    with place() as folder:
        return _damage(times, seed, {"model": content}, Path(folder) / "m.nocl", read)


def damage_checkpoints(times: int, seed: int) -> Counts:
    """Checkpoints of five methods on vectors: small files, so that a change often meets a header or a statistic."""
    contents, states = {}, {}
    draw = torch.Generator().manual_seed(0)
    with place() as folder:
        path = Path(folder) / "c.safetensors"
        for name in ("ncm", "slda", "rda", "fecam", "ranpac"):
            more = {"expansion": 16} if name == "ranpac" else {}
            learner = make(name, backbone="features:6", **more)
            learner.observe(torch.rand(12, 6, generator=draw), torch.arange(12) % 3)
            learner.end_session()
            save(learner, path)
            contents[name], states[name] = path.read_bytes(), learner.state_dict()

        def read(path: Path) -> bool:
            found = load(path).state_dict()
            return any(same_bits(found, right) for right in states.values())

        return _damage(times, seed, contents, path, read)


def damage_journals(times: int, seed: int) -> Counts:
    """Journals of acknowledged lessons and answers to keys."""
    with place() as folder:
        path = Path(folder) / "m.nocl"
        fitted(n=2).save(path)
        store, key = Store(path), Key.of("k", "learn")
        for number in range(3):
            store.learn([(pictures("blue", 1, number), "blue")], [key if number == 1 else None])
        lessons, answer = list(store._journal.lessons()), store._journal.answer(key.key)
        store._journal.close()
        store._lock.release()
        whole, digest = journal_of(path).read_bytes(), file_digest(path)

        def read(damaged: Path) -> bool:
            journal = Journal(damaged, digest)
            try:
                return list(journal.lessons()) == lessons and journal.answer(key.key) == answer
            finally:
                journal.close()
                for left in damaged.parent.glob("damaged.journal-*"):
                    left.unlink()

        return _damage(times, seed, {"journal": whole}, Path(folder) / "damaged.journal", read)


def damage_pictures(times: int, seed: int) -> Counts:
    """Pictures of each format that can be written here."""
    Image.init()
    image = image_of(pictures("red", 1, size=48)[0])
    forms = {"PNG": png("red", size=48)}
    for form in ("JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "TGA"):
        if form in Image.SAVE:
            forms[form] = saved(image, form)
    forms["progressive"] = saved(image, "JPEG", progressive=True)
    forms["frames"] = saved(image, "WEBP", save_all=True, append_images=[image])

    def read(path: Path) -> bool:
        return decode(path, 32, pixel_limit=40_000_000).shape == (3, 32, 32)

    with place() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _damage(times, seed, forms, Path(folder) / "picture", read)


# --- code -----------------------------------------------------------------------------------------------------------

_watched: list[str] = []
_watching = False
_EVENTS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "import", "exec", "socket.connect")


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and (event in _EVENTS or (event == "open" and "w" in str(arguments[1] or ""))):
        _watched.append(f"{event} {arguments[:1]}")


@contextmanager
def listening() -> Iterator[list[str]]:
    """What Python was asked to import, execute, start or write while the block ran."""
    global _watching  # an audit hook cannot be taken away again
    if not hasattr(sys, "_nocl_campaign_hook"):
        sys._nocl_campaign_hook = True  # type: ignore[attr-defined]
        sys.addaudithook(_heard)
    _watched.clear()
    _watching = True
    try:
        yield _watched
    finally:
        _watching = False


class _Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def _hostile_pickles() -> dict[str, bytes]:
    import builtins
    import os
    import subprocess

    calls = [(os.system, "true"), (builtins.eval, "1"), (builtins.exec, "1"), (subprocess.run, ["true"]),
             (builtins.__import__, "this"), (os.remove, "/nowhere"), (builtins.open, "/nowhere", "w"),
             (builtins.compile, "1", "a", "eval")]  # fmt: skip
    array = np.arange(200, dtype=np.float32).reshape(10, 20)
    made = {"plain": pickle.dumps({b"data": array, "labels": list(range(300)), "names": ["a"] * 40}, protocol=2)}
    for protocol in (0, 2, 4, 5):
        made[f"array {protocol}"] = pickle.dumps({"data": array, "more": [array, {"x": 1}]}, protocol=protocol)
        for number, (function, *arguments) in enumerate(calls):
            content = {"data": array, "x": _Calls(function, *arguments)}
            made[f"call {number} {protocol}"] = pickle.dumps(content, protocol=protocol)
    return made


def damage_pickles(times: int, seed: int) -> Counts:
    """Pickles of data sets and pickles that call functions, whole and damaged: nothing of theirs may run."""
    sources, ran = _hostile_pickles(), 0
    with place() as folder:
        path = Path(folder) / "p"
        for name in ("plain", *(name for name in sources if name.startswith("array"))):
            path.write_bytes(sources[name])
            read_pickle(path)  # Python imports the codecs that these need

        def read(path: Path) -> bool:
            nonlocal ran
            with listening() as heard:
                try:
                    return read_pickle(path) is not None
                finally:
                    ran += bool(heard)

        for name, content in sources.items():  # whole ones first
            path.write_bytes(content)
            try:
                read(path)
                ran += name.startswith("call")
            except REFUSALS:
                continue
        return _damage(times, seed, sources, path, read) | {"code run": ran}


SPELLINGS = ("{}", "{}@64", "{}.x", " {}", "{}!", "{}\n", ".{}", "{}:x", "timm:{}")


def named_code(times: int, seed: int) -> Counts:
    """Checkpoints and models with a fitting digest that name code, in every place and spelling: none of it is run."""
    draw = np.random.default_rng(seed)
    total = {"files": 0, "code run": 0, "accepted": 0}
    with place() as folder:
        learner = make("ncm", backbone="features:6")
        learner.observe(torch.rand(4, 6), torch.arange(4) % 2)
        checkpoint, model, path = Path(folder) / "c", Path(folder) / "m", Path(folder) / "x"
        save(learner, checkpoint)
        fitted(n=2).save(model)
        sources = [(load, *read_tensors(checkpoint)), (Classifier.load, *read_tensors(model))]
        for _ in range(times):
            read, tensors, outer = sources[int(draw.integers(8) == 0)]
            header: Any = json.loads(json.dumps(outer["nocl"]))
            code = str(draw.choice(["antigravity:fly", "os:abort", "this:s", "sys:exit", "builtins:breakpoint"]))
            name = str(draw.choice(list(SPELLINGS))).format(code)
            where = int(draw.integers(6))
            if where == 0:
                header["method"] = name
            elif where == 5:
                header["backbone"] = name
            else:
                header["params"] |= (
                    {"backbone": name}, {"recipe": {"objective": name}}, {"recipe": {"options": {name: [[name]]}}},
                    {"stages": [name]},
                )[where - 1]  # fmt: skip
            header["digest"] = content_digest(header, tensors)
            path.write_bytes(tensor_bytes(tensors, metadata={"nocl": json.dumps(header)}))
            total["files"] += 1
            with listening() as heard:
                try:
                    read(path)
                    total["accepted"] += where not in (5,) or read is not load  # a checkpoint has no such entry
                except DamagedFileError:
                    pass
                total["code run"] += any("antigravity" in line or "'this'" in line for line in heard)
    return total
