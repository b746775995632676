"""PullChannel and PushChannel: one-way typed messages between processes, over Unix stream sockets.

The receiver binds and owns its inbox; any number of senders connect. Order is kept per sender. Plain sockets, because at few
streams a token costs what waking costs: one system call sends a message here and one receives it, and no helper thread wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millstream.ipc.frames import FrameReader, NotAMessage, decode, frame

log = logging.getLogger(__name__)

READ_BYTES = 1 << 18
MAX_FRAME_BYTES = 1 << 30  # a request is as long as its prompt; anything longer is no message of ours
BACKLOG = 16  # senders that may wait to be accepted


class Sender(Protocol):
    """What a manager needs to send; tests give it a list's append."""

    def send(self, message: Any) -> None:
        """Hand over one message. Never blocks."""


class PushChannel:
    """The sending end. Owned by one thread.

    It connects with the first message, for nobody sends before every process is ready. What the socket cannot take at once
    goes out from a thread that lives as long as there is a backlog: a blocked send would stop a loop that others rely on. The
    backlog is bounded by admission (requests x tokens). What is sent to a process that is gone is lost, as the process is:
    its death is the supervisor's business.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._encoder = msgspec.msgpack.Encoder()
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()  # over the backlog
        self._backlog: deque[bytes] = deque()
        self._is_lost = False  # said once, not with every message

    def send(self, message: Any) -> None:
        """Encode and send or queue one message. Never blocks."""
        data = frame(self._encoder.encode(message))
        with self._lock:
            if self._backlog:
                self._backlog.append(data)
                return
        try:
            if self._socket is None:
                self._socket = self._connect()
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if not self._is_lost:
                log.error("nobody reads at %s: %s", self._address, error)
            self._is_lost = True
            self.close()
            return
        else:
            self._is_lost = False
        if sent < len(data):
            self._backlog.append(data[sent:])
            threading.Thread(target=self._send_backlog, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Close. What was sent will be read; what is queued is lost."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._address)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock

    def _send_backlog(self, sock: socket.socket) -> None:
        poller = select.poll()
        with contextlib.suppress(OSError, ValueError):  # closed, by us or by the peer
            poller.register(sock, select.POLLOUT)
            while True:
                data = self._backlog[0]  # it stays there until it is sent, so that nothing overtakes it
                while data:
                    poller.poll()
                    data = data[sock.send(data) :]
                with self._lock:
                    self._backlog.popleft()
                    if not self._backlog:
                        return
        with self._lock:
            self._backlog.clear()


class PullChannel:
    """The receiving end: binds `address` and decodes frames to `types`. Owned by one thread.

    A frame that does not decode is logged, counted in `bad_frames` and dropped: nobody else's messages are touched.
    """

    def __init__(self, address: str, types: Any) -> None:
        self._address = address
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(address)
        self._listener.listen(BACKLOG)
        self._decoder = msgspec.msgpack.Decoder(types)
        self._senders: dict[int, tuple[socket.socket, FrameReader]] = {}
        self._chunk = memoryview(bytearray(READ_BYTES))
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.bad_frames = 0

    def watch(self, fd: int) -> None:
        """Let `receive` end its wait for `fd`, too, and report it."""
        self._epoll.register(fd, select.EPOLLIN)

    def receive(self, timeout_s: float | None = 0) -> tuple[list[Any], bool]:
        """Take what has arrived, waiting for something to arrive up to `timeout_s`, or for ever with None.

        Returns:
            The messages, in order for each sender, perhaps none; and whether a watched descriptor is readable.
        """
        messages: list[Any] = []
        is_alerted = False
        for fd, _ in self._epoll.poll(timeout_s):
            if fd in self._senders:
                messages += self._read(fd)
            elif fd == self._listener.fileno():
                self._epoll.register(self._accept(), select.EPOLLIN)
            else:
                is_alerted = True
        return messages, is_alerted

    def pump(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[Any], None]) -> None:
        """Deliver messages to `on_message` from the event loop until `close`."""
        self._loop = loop

        def deliver(fd: int) -> None:
            for message in self._read(fd):
                on_message(message)

        def accept() -> None:
            fd = self._accept()
            loop.add_reader(fd, deliver, fd)

        loop.add_reader(self._listener.fileno(), accept)

    def close(self) -> None:
        """Stop receiving and remove the socket file."""
        self._epoll.close()
        for fd in list(self._senders):
            self._drop(fd)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if os.path.exists(self._address):
            os.unlink(self._address)

    def _accept(self) -> int:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        self._senders[sock.fileno()] = sock, FrameReader(MAX_FRAME_BYTES)
        return sock.fileno()

    def _drop(self, fd: int) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)
        sock, _ = self._senders.pop(fd)
        sock.close()

    def _read(self, fd: int) -> list[Any]:
        """Take one sender's messages; its descriptor stays readable where more has arrived."""
        sock, reader = self._senders[fd]
        try:
            size = sock.recv_into(self._chunk)
            frames = reader.feed(self._chunk[:size])
        except (ConnectionResetError, ValueError) as error:
            log.error("a sender is cut off: %s", error)
            size, frames = 0, []
        messages: list[Any] = []
        for each in frames:
            try:
                messages.append(decode(self._decoder, each))
            except NotAMessage as error:
                self.bad_frames += 1
                log.error("dropped a message that does not decode (%d bytes): %s", len(each), error)
        if not size:
            self._drop(fd)
        return messages
