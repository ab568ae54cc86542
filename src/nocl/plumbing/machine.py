"""The environment of a run: versions, machine, threads, memory, and the commit of a checkout."""

import os
import platform
import subprocess
from pathlib import Path

import torch

from nocl.plumbing.types import JSON
from nocl.plumbing.version import __version__


def environment(device: str | torch.device = "cpu") -> dict[str, JSON]:
    """Versions, machine, threads, device, and nocl's commit if it is a checkout."""
    commit, dirty = _commit()
    return {
        "nocl": __version__,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": _device_name(torch.device(device)),
    }


def peak_memory() -> int | None:
    """Peak resident memory of this process in bytes; None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout this file is tracked in, and whether the package differs from it."""
    file = Path(__file__).resolve()
    folder = file.parents[1]  # the package
    if _git(folder, "ls-files", "--error-unmatch", str(file)) is None:
        return None, None  # installed somewhere, perhaps inside another project's repository
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=clean,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None  # no git, no repository, or one that does not answer: the result says null
    return done.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return None
