"""ControlLink: the one connection between the supervisor and a child, a socket pair with length-prefixed msgpack frames.

The operating system closes the other end when a process dies, however it dies: so the end of this stream is the news of a
death, in both directions, and a READY, a death and a time-out can be waited for in one place.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import Any

import msgspec

from millstream.ipc.frames import FrameReader, NotAMessage, decode, frame

MAX_FRAME_BYTES = 1 << 20


class PeerGone(Exception):
    """The process at the other end is dead or has closed its link."""


class ControlLink:
    """One end of a supervisor-child connection. Receives values of `types` in one thread; any thread may send."""

    def __init__(self, sock: socket.socket, types: Any) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.Lock()  # over sending: a message goes out whole
        self._decoder = msgspec.msgpack.Decoder(types)
        self._reader = FrameReader(MAX_FRAME_BYTES)

    def fileno(self) -> int:
        """The descriptor to wait on for `receive`."""
        return self._socket.fileno()

    def send(self, message: Any, *, must_arrive: bool = True) -> bool:
        """Send one message; waits while the peer's buffer is full, unless it need not arrive: then it is dropped.

        A peer that is gone is noticed by `receive`.

        Returns:
            Whether it was not dropped.
        """
        data = memoryview(frame(msgspec.msgpack.encode(message)))
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    if not must_arrive:
                        return False
                    self._wait_writable()
                must_arrive = True  # a part of it is out
        return True

    def note(self, message: Any) -> bool:
        """Send a message to a peer that keeps up; whether it does."""
        return self.send(message, must_arrive=False)

    def _wait_writable(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        poller.poll()

    def receive(self) -> list[Any]:
        """Take every complete message that has arrived, without waiting.

        Raises:
            PeerGone: the peer closed its end and nothing complete is left.
        """
        closed = False
        messages: list[Any] = []
        while True:
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                closed = True
                break
            try:
                messages += [decode(self._decoder, each) for each in self._reader.feed(data)]
            except (ValueError, NotAMessage) as error:  # whatever is at the other end, it is no process of ours
                raise PeerGone from error
        if closed and not messages:
            raise PeerGone
        return messages

    def close(self) -> None:
        """Close this end; the peer sees it as ours being gone."""
        self._socket.close()
