"""DirectWriter: parts of a streamed answer, written to the connection itself. The short way for one event a token.

Made by the HTTP protocol for each connection, used by the exchange between the head and the last part of a chunked answer.
Those two go through ASGI, as does every part that cannot be written at once. So uvicorn's cycle stays true: it knows that the
answer has begun and when it is complete, and nothing it keeps in between depends on a part. Its own `send` does the same
write, after a dozen checks of what cannot change within an answer.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

PART = b"%x\r\n%b\r\n"  # a chunk of a chunked answer: its length, and it
JOINED_PART = b"%x\r\n%b%b%b\r\n"


class DirectWriter:
    """One connection's short way. `transport` and `flow` are for who makes a closure of what `try_write` does."""

    __slots__ = ("flow", "transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self.transport = transport
        self.flow = flow

    @property
    def is_free(self) -> bool:
        """Whether the connection takes a part at once."""
        return not (self.flow.write_paused or self.transport.is_closing())

    def try_write(self, data: bytes) -> bool:
        """Write one part, not empty. False, and nothing written: the client reads too slowly, or is gone."""
        if not self.is_free:
            return False
        self.transport.write(PART % (len(data), data))
        return True
