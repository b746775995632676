"""Channels between the threads of one process: what `ipc.channel` is between processes, with the same messages.

Messages are encoded and decoded here, too. Each side then owns what it has, and may change it, as between processes; that costs
a few microseconds a step, and no lock is needed in any manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Any

import msgspec

log = logging.getLogger(__name__)

ALIVE = 1  # the number of the one connection there ever is


class Inbox:
    """Messages for a thread that waits for them. Anybody sends; one thread receives."""

    def __init__(self, types: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(types)
        self._waiting: deque[bytes] = deque()
        self._change = Condition()
        self._is_closed = False

    def send(self, message: Any) -> None:
        """Hand over one message. Never blocks."""
        data = msgspec.msgpack.encode(message)
        with self._change:
            self._waiting.append(data)
            self._change.notify()

    def receive(self, timeout_s: float | None) -> list[Any] | None:
        """Take what has arrived, waiting for something up to `timeout_s`, or for ever with None; None once it is closed."""
        with self._change:
            if timeout_s != 0:
                self._change.wait_for(lambda: self._waiting or self._is_closed, timeout_s)
            if self._is_closed:
                return None
            taken = list(self._waiting)
            self._waiting.clear()
        return [self._decoder.decode(data) for data in taken]

    def close(self) -> None:
        """End the receiver's waiting for good."""
        with self._change:
            self._is_closed = True
            self._change.notify()


class LoopChannel:
    """Messages for a manager on an event loop, which takes each in `deliver`. Sent from any thread, delivered in order.

    A message whose handling fails is logged and costs no other.
    """

    def __init__(self, types: Any, loop: asyncio.AbstractEventLoop, deliver: Callable[[Any], None]) -> None:
        self._decoder = msgspec.msgpack.Decoder(types)
        self._loop = loop
        self._deliver = deliver
        self.receiver_pid = ALIVE  # whom `StepOutput` takes for the same receiver: it is never replaced

    def send(self, message: Any) -> int:
        """Hand over one message. Never blocks. Returns the number of the connection."""
        self._loop.call_soon_threadsafe(self._take, msgspec.msgpack.encode(message))
        return ALIVE

    def connect(self) -> int:
        """The number of the connection."""
        return ALIVE

    def _take(self, data: bytes) -> None:
        message = self._decoder.decode(data)
        try:
            self._deliver(message)
        except Exception:
            log.exception("a %s could not be handled", type(message).__name__)
