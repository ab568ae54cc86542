"""The base session on stored features, learned once for all runs that have the same one.

Streams of one data set on one network begin with the same base session, and a method with the same parameters and seed
learns the same from it. What it learned is kept in a file of the grid's cache, named by all that decides it.
"""

import inspect
from pathlib import Path

from filelock import FileLock

from nocl.learner import Learner
from nocl.methods import name_of
from nocl.methods._saving import load_with_extra, save
from nocl.plumbing.files import digest, file_digest
from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__
from nocl.streams import RepeatableSession

SHARED = "base_session"  # of a result's ``base``: the run took it over, so that its time is not in ``seconds``


def share_base(learner: Learner, base: RepeatableSession, cache: Path) -> None:
    """Bring the learner to the end of its base session: from the file in the cache, or by learning it into one."""
    key: dict[str, JSON] = {
        "method": name_of(learner),
        "params": learner.get_params(),
        "base": base.describe(),
        "nocl": __version__,
        **_own_code(learner),
    }
    path = cache / f"learned-{digest(key)}.safetensors"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            save(learner.fit_base(base, workdir=cache), path)
            return
    known, _ = load_with_extra(path, trust=(name_of(learner), learner.backbone))
    learner.load_state_dict(known.state_dict())
    learner.base_, learner.log_ = {**known.base_, SHARED: "taken over from another run"}, known.log_


def _own_code(learner: Learner) -> dict[str, JSON]:
    """A digest of the files of a method that does not ship with nocl: an edited one learns its base session anew."""
    own = [cls for cls in type(learner).__mro__ if not cls.__module__.startswith(("nocl.", "torch.", "builtins"))]
    files = sorted({file for cls in own if (file := inspect.getsourcefile(cls)) is not None})
    return {"code": [file_digest(Path(file)) for file in files]} if files else {}
