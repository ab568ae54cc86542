"""Running the application: on this machine only, unless there is a token."""

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from nocl.app.serve.app import build
from nocl.app.serve.door import check_token
from nocl.app.serve.limits import Limits
from nocl.app.serve.protocol import settings
from nocl.app.serve.store import Store

log = logging.getLogger(__name__)
MIN_TOKEN = 16  # characters


class UnsafeAddressError(ValueError):
    """Listening there without a token would let anyone change the model."""


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
    start: Callable[[], None] = lambda: None,
    listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a model until told to end (SIGTERM) or interrupted, then write it whole.

    ``start`` is called once the port is ours, before the model is read; ``listening`` with the address once
    requests are answered.
    """
    limits = limits or Limits()
    check_address(host, token)
    listener = _listener(host, port)
    start()
    own = [] if _is_address(host) else [host]
    store = Store(path, trust=trust, device=device)
    app = build(
        store, token=token, limits=limits, private=private, names=[*own, *names], onnxruntime_web=onnxruntime_web
    )
    shown = f"[{host}]" if ":" in host else host
    server = _Announcing(uvicorn.Config(app, log_level="warning", **settings(limits)))
    server.announce = lambda: listening(f"http://{shown}:{listener.getsockname()[1]}/")
    server.run(sockets=[listener])


class _Announcing(uvicorn.Server):  # type: ignore[misc]
    """Says when it listens, and simply ends at SIGTERM, which is how services are stopped."""

    announce: Callable[[], None]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:
            self.should_exit = True  # uvicorn would raise the signal again after it has stopped
        else:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self.announce()


def _listener(host: str, port: int) -> socket.socket:
    """The socket to listen on, opened first, so that a port in use is found at once."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen on {host} port {port} ({reason}): choose another --port or --host") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_address(host: str, token: str | None) -> None:
    """Refuse an address that other machines can reach, unless there is a token that is long enough."""
    if token is not None:
        check_token(token)
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
