"""HTTP connections with time limits; uvicorn alone waits forever for an incomplete request.

A connection must send the head of a request within some seconds after it was opened or last answered. One address
may hold so many connections; one more takes the place of its oldest that is not being answered. A client that does not
read its answer is closed, however small the pieces in which it pretends to.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from nocl.app.serve.limits import Limits

SLOWEST = 4096  # bytes a second that a client must read of an answer


def protocol(limits: Limits) -> type[H11Protocol]:
    """The protocol class for uvicorn's ``http`` setting."""

    class Connection(_Connection):
        pass

    Connection.limits, Connection.open = limits, {}
    return Connection


class _Connection(H11Protocol):  # type: ignore[misc]  # uvicorn has no types here
    limits: Limits
    open: dict[str, dict["_Connection", None]]  # by address, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        others = self.open.setdefault(self._address, {})
        if len(others) >= self.limits.per_address and not _make_room(others):
            transport.abort()
            return
        others[self] = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        others = self.open.get(self._address, {})
        others.pop(self, None)
        if not others:
            self.open.pop(self._address, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_idle = self.idle
        super().data_received(data)
        if was_idle and not self.idle:
            self._stop_waiting()  # the head is here; the body has its own time limit
        elif self.idle and self._deadline is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.idle:
            self._stop_waiting()
            self._expect_head()

    def pause_writing(self) -> None:
        """The answer waits for the client to read."""
        super().pause_writing()
        if self._reading is None:
            self._watch_reading(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _watch_reading(self, before: int | None) -> None:
        """Close a client that has read less than a modem would since the last look."""
        left, seconds = self.transport.get_write_buffer_size(), self.limits.upload_seconds / 4
        if before is not None and before - left < SLOWEST * seconds:
            self._reading = None
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(seconds, self._watch_reading, left)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # closing would wait for a client that does not read

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self.limits.header_seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close() if not self.transport.get_write_buffer_size() else self.transport.abort()


def _make_room(others: dict[_Connection, None]) -> bool:
    """Close the oldest connection that is not being answered."""
    for other in others:
        if other.idle:
            others.pop(other)
            other.transport.abort()
            return True
    return False


def settings(limits: Limits) -> dict[str, Any]:
    """uvicorn's settings for these limits."""
    return {
        "http": protocol(limits), "ws": "none", "server_header": False, "limit_concurrency": limits.connections,
        "timeout_keep_alive": 15, "timeout_graceful_shutdown": 20, "h11_max_incomplete_event_size": 1 << 16,
    }  # fmt: skip
