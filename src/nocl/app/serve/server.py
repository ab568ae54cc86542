"""Running the application: on this machine only, unless there is a token."""

import ipaddress
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from nocl.app.serve.app import build
from nocl.app.serve.limits import Limits
from nocl.app.serve.protocol import settings
from nocl.app.serve.store import Store

log = logging.getLogger(__name__)
MIN_TOKEN = 16  # characters


class UnsafeAddressError(ValueError):
    """Listening there without a token would let anyone teach the model."""


def serve(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    private: bool = False,
    names: Sequence[str] = (),
    onnxruntime_web: Path | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> None:
    """Serve a model until interrupted, then write it whole."""
    limits = limits or Limits()
    check_address(host, token)
    own = [] if _is_address(host) else [host]
    store = Store(path, trust=trust, device=device)
    app = build(
        store, token=token, limits=limits, private=private, names=[*own, *names], onnxruntime_web=onnxruntime_web
    )
    uvicorn.run(app, host=host, port=port, log_level="warning", **settings(limits))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_address(host: str, token: str | None) -> None:
    """Refuse an address that others can reach unless there is a token worth the name."""
    if token is not None and len(token) < MIN_TOKEN:
        raise UnsafeAddressError(f"NOCL_TOKEN must have at least {MIN_TOKEN} characters, not {len(token)}")
    if token is None and not _is_loopback(host):
        raise UnsafeAddressError(
            f"{host} can be reached by others: set NOCL_TOKEN to a secret of at least {MIN_TOKEN} characters, "
            "or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(addresses) and all(ipaddress.ip_address(str(a).split("%")[0]).is_loopback for a in addresses)
