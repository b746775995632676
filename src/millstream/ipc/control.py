"""ControlLink: the one connection between the supervisor and a child, a socket pair with length-prefixed msgpack frames.

The operating system closes the other end when a process dies, however it dies: so the end of this stream is the news of a
death, in both directions, and a READY, a death and a time-out can be waited for in one place.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 1 << 20


class PeerGone(Exception):
    """The process at the other end is dead or has closed its link."""


class ControlLink:
    """One end of a supervisor-child connection. Receives values of `types`; owned by one thread."""

    def __init__(self, sock: socket.socket, types: Any) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = msgspec.msgpack.Decoder(types)
        self._buffer = bytearray()

    def fileno(self) -> int:
        """The descriptor to wait on for `receive`."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message; waits while the peer's buffer is full. A peer that is gone is noticed by `receive`."""
        frame = msgspec.msgpack.encode(message)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.setblocking(True)
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        self._socket.setblocking(False)

    def receive(self) -> list[Any]:
        """Take every complete message that has arrived, without waiting.

        Raises:
            PeerGone: the peer closed its end and nothing complete is left.
        """
        closed = False
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
            self._buffer += data
        messages = self._take_frames()
        if closed and not messages:
            raise PeerGone
        return messages

    def close(self) -> None:
        """Close this end; the peer sees it as ours being gone."""
        self._socket.close()

    def _take_frames(self) -> list[Any]:
        messages: list[Any] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise PeerGone  # not a frame of ours: nothing after it can be read
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages
