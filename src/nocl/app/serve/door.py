"""Access control: the host name is always checked, the token for changes, and for reading if the service is private.

A web page can make a browser send requests to any address, under a host name of its own that resolves to that address
(DNS rebinding). So the host name of a request must be one that no other site can own. Without a token only this machine
may change the model, and only from the service's own page.
"""

import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+(%\w+)?\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?", re.ASCII)


class Door:
    """The checks of one service."""

    def __init__(self, token: str | None, *, private: bool = False, names: Sequence[str] = ()) -> None:
        if private and token is None:
            raise ValueError("a private service needs a token: set NOCL_TOKEN")
        if token is not None:
            check_token(token)
        self._token = None if token is None else token.encode()
        self.private = private
        self._names = {"localhost", *(name.lower() for name in names)}
        if token is not None:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    @property
    def needs_token(self) -> bool:
        """True if changes need a token."""
        return self._token is not None

    def may_read(self, request: Request) -> None:
        """Refuse reading without the token if the service is private."""
        if self.private:
            self._check_token(request, "this service")

    def may_change(self, request: Request) -> None:
        """Refuse a change without the token, or, if there is none, from other pages than our own."""
        if self._token is not None:
            self._check_token(request, "changes")
            return
        origin = request.headers.get("origin")
        if origin is not None and _place(origin) != request.headers.get("host", "").lower():
            raise HTTPException(403, "changes from other sites are refused")

    def wrong_host(self, request: Request) -> JSONResponse | None:
        """The error for a request with a host name that is not this service's; None if it is right."""
        given = request.headers.get("host", "")
        host = _host(given)
        if host is None:
            return JSONResponse({"detail": "the Host header is missing or is not a host"}, 400)
        if host in self._names or self._is_own_address(host):
            return None
        return JSONResponse(
            {"detail": f"{host[:100]} is not a name of this service; start it with --name to allow it"}, 403
        )

    def _is_own_address(self, host: str) -> bool:
        """An address cannot be owned by another site as a name can; without a token it must be this machine's."""
        try:
            address = ipaddress.ip_address(host.split("%")[0])
        except ValueError:
            return False
        return self._token is not None or address.is_loopback

    def _check_token(self, request: Request, what: str) -> None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token or b""):
            raise HTTPException(401, f"{what} need{'s' * (what != 'changes')} the right token",
                                headers={"WWW-Authenticate": "Bearer"})  # fmt: skip


def check_token(token: str) -> None:
    """Refuse a token that no client can send in a header. The token is a secret and is not part of the message."""
    if not token:
        raise ValueError("NOCL_TOKEN is empty: set a secret, or unset it")
    odd = next((i for i, letter in enumerate(token, 1) if not " " <= letter <= "~"), None)
    if odd is not None:
        raise ValueError(f"NOCL_TOKEN may have printable ASCII characters only; character {odd} is another: replace it")
    if token != token.strip():
        raise ValueError("NOCL_TOKEN must not begin or end with a space: a header loses it there; take it away")


def _host(given: str) -> str | None:
    """The host of a Host header, without port; None if it is none."""
    parts = _HOST.fullmatch(given)
    if parts is None or int(parts["port"] or 0) > 65535:
        return None
    return parts["name"].strip("[]").lower().removesuffix(".") or None  # a full name may end in a dot


def _place(origin: str) -> str | None:
    """Host and port of an Origin header; None if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
