"""Memory limits of requests: how many bytes may be held at once, with a part reserved for small requests.

Large requests must not block the many small ones, so each kind has its own memory.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """A limited number of bytes and places; a request that finds none waits in a queue. For one event loop."""

    def __init__(self, total: int, places: int) -> None:
        self.total, self._left, self._places = total, total, places
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Hold ``size`` bytes (at most all there are) and one place."""
        size = min(size, self.total)
        await self._wait_for(size)
        try:
            yield
        finally:
            self._left += size
            self._places += 1
            self._call_next()

    async def _wait_for(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, turn))
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # our turn came as we gave up
                self._left += size
                self._places += 1
            self._call_next()
            raise

    def _call_next(self) -> None:
        while self._line:
            size, turn = self._line[0]
            if not turn.cancelled():
                if not self._places or size > self._left:
                    return
                self._left -= size
                self._places -= 1
                turn.set_result(None)
            self._line.popleft()


class Shelf:
    """A limited number of bytes without a queue: what does not fit is refused."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    def fits(self, size: int) -> bool:
        """Take ``size`` more bytes if they are there."""
        if self.used + size > self.total:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
