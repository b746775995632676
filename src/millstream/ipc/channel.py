"""PullChannel and PushChannel: one-way typed messages between processes.

The receiver binds and owns its inbox; any number of senders connect. Order is kept per sender. No high-water mark is set:
what is in flight is bounded by admission (requests x tokens), and a blocked send would stop a loop that others rely on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq

log = logging.getLogger(__name__)

LINGER_MS = 1000  # how long an unsent last message may delay the exit of its sender


class Sender(Protocol):
    """What a manager needs to send; tests give it a list's append."""

    def send(self, message: Any) -> None:
        """Hand over one message. Never blocks."""


class PushChannel:
    """The sending end. Owned by one thread."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Any) -> None:
        """Encode and queue one message. Never blocks."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Close; messages already sent get `LINGER_MS` to leave."""
        self._socket.close()


class PullChannel:
    """The receiving end: binds `address` and decodes frames to `types`. Owned by one thread.

    A frame that does not decode is logged, counted in `bad_frames` and dropped: nobody else's messages are touched.
    """

    def __init__(self, address: str, types: Any) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._path = address.removeprefix("ipc://")
        self._decoder = msgspec.msgpack.Decoder(types)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.bad_frames = 0

    def receive(self) -> list[Any]:
        """Take everything that has arrived, without waiting."""
        messages: list[Any] = []
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # asking costs less than the exception of a vain `recv`
            frame = self._socket.recv(zmq.NOBLOCK)
            try:
                messages.append(self._decoder.decode(frame))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self.bad_frames += 1
                log.error("dropped a message that does not decode (%d bytes): %s", len(frame), error)
        return messages

    def register(self, poller: zmq.Poller) -> None:
        """Let a synchronous loop wait on this channel among others."""
        poller.register(self._socket, zmq.POLLIN)

    def pump(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[Any], None]) -> None:
        """Deliver messages to `on_message` from the event loop until `close`."""
        self._loop = loop

        def drain() -> None:
            # zmq's descriptor signals edges: everything must be taken each time, or the next edge never comes
            for message in self.receive():
                on_message(message)

        loop.add_reader(self._socket.FD, drain)
        loop.call_soon(drain)

    def close(self) -> None:
        """Stop receiving and remove the socket file."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.FD)
        self._socket.close()
        if os.path.exists(self._path):
            os.unlink(self._path)
