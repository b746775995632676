"""Server-sent events: the frames, and a stream that keeps itself alive and notices a client that does not read.

Used by `entry.stream`. Rules: the data of each event is one line of JSON; a stream that fails ends with a closed connection.
How a stream that succeeds ends is its API's to say: OpenAI's older routes send `[DONE]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from millstream.entry.failure import Failure
from millstream.entry.http.direct import JOINED_PART
from millstream.entry.http.errors import error_body
from millstream.entry.http.exchange import Exchange
from millstream.messages import Progress

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
LOOKS_PER_TIMEOUT = 4  # how often, within the time a client may leave a stream unread, we look whether it has read on


def event(data: bytes) -> bytes:
    """One event. `data` is JSON, which has no raw line break."""
    return b"data: " + data + b"\n\n"


def named_event(name: bytes, data: bytes) -> bytes:
    """One event with a line that names its kind."""
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


def error_event(failure: Failure) -> bytes:
    """The event that ends a failed stream of the routes that know one kind of event only."""
    return event(error_body(failure))


def progress_comment(progress: Progress) -> bytes:
    """A comment for people and for front ends that want it: where a request is before its first token."""
    if progress.place:
        return b": queued %d\n\n" % progress.place
    return b": prefill %d/%d\n\n" % (progress.done, progress.total)


class EventStream:
    """One stream to one client.

    `on_idle` is called when nothing was written for `keep_alive_s`: it wakes the writer, which calls `keep_alive`. A client
    that takes nothing of what waits for it for `write_timeout_s` is reported to `on_stuck` and its connection dropped, which
    the exchange reports as a disconnect. One that reads slowly is left alone.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        keep_alive_s: float,
        write_timeout_s: float,
        on_idle: Callable[[], None],
        on_stuck: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._direct = exchange.direct
        self._keep_alive_s = keep_alive_s
        self._write_timeout_s = write_timeout_s
        self._on_idle = on_idle
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._blocked_since: float | None = None  # when the client last took something of what waits; None: nothing waits
        self._blocked_bytes = 0  # what the connection held then
        self._pending_bytes = 0  # of the write that waits
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, first: bytes) -> None:
        """Send status and headers, and the first events if there are any."""
        await self._exchange.start_stream()
        self._arm(self._loop.time())
        if first:
            await self.write(first)

    async def write(self, data: bytes) -> None:
        """Send events; waits while the client does not read."""
        self._block()
        self._pending_bytes = len(data)
        await self._exchange.send_part(data)
        self._pending_bytes = 0
        self._blocked_since = None
        self._last_write = self._loop.time()

    @property
    def is_free(self) -> bool:
        """Whether events can be sent at once: none wait to be taken, and there is a way to."""
        return self._blocked_since is None and self._direct is not None and self._direct.is_free

    def try_write(self, data: bytes) -> bool:
        """Send events at once; False, and nothing sent, where it is not free."""
        if self._blocked_since is not None or self._direct is None or not self._direct.try_write(data):
            return False
        self._last_write = self._loop.time()
        return True

    def text_writer(self, before: bytes, after: bytes) -> Callable[[str, list[int]], bool]:
        """A `try_write` of events that are `before`, a text as JSON, and `after`, for rows; no text makes no event.

        Every token of every stream passes through it, so one call does it all.
        """
        direct = self._direct
        if direct is None:
            return lambda text, _: not text or self.try_write(before + _encode(text) + after)
        flow, is_closing, write, now = direct.flow, direct.transport.is_closing, direct.transport.write, self._loop.time
        size = len(before) + len(after)

        def write_text(text: str, _token_ids: list[int]) -> bool:
            if text:
                if self._blocked_since is not None or flow.write_paused or is_closing():
                    return False
                data = _encode(text)
                write(JOINED_PART % (size + len(data), before, data, after))
                self._last_write = now()
            return True

        return write_text

    async def wait_taken(self) -> None:
        """Wait until the client has taken nearly all that was written: until the connection takes more at once."""
        await self.write(b"")

    def unsent_bytes(self) -> int:
        """Bytes that were written and that the client has not taken."""
        return self._pending_bytes + self._exchange.unsent_bytes

    async def keep_alive(self) -> None:
        """Send a sign of life if nothing was sent for long."""
        if self._loop.time() - self._last_write >= self._keep_alive_s:
            await self.write(self._exchange.dialect.sign_of_life)

    async def close(self, last: bytes) -> None:
        """Send the last events. The connection stays: the answer is complete, also where its last event tells of a failure."""
        self._block()
        await self._exchange.end_stream(last)

    def stop(self) -> None:
        """Stop watching. Must be called, whatever happened."""
        if self._timer is not None:
            self._timer.cancel()

    def _block(self) -> None:
        self._blocked_since = self._loop.time()
        self._blocked_bytes = self._exchange.unsent_bytes

    def _arm(self, now: float) -> None:
        idle_at = (
            self._last_write + self._keep_alive_s if self._last_write + self._keep_alive_s > now else now + self._keep_alive_s
        )
        self._timer = self._loop.call_at(min(idle_at, now + self._write_timeout_s / LOOKS_PER_TIMEOUT), self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        if self._blocked_since is not None:
            if self._exchange.unsent_bytes < self._blocked_bytes:
                self._block()
            elif now - self._blocked_since >= self._write_timeout_s:
                self._on_stuck()
                self._exchange.drop_connection()
                return
        elif now - self._last_write >= self._keep_alive_s:
            self._on_idle()
        self._arm(now)
