"""PullChannel and PushChannel: one-way typed messages between processes, over Unix stream sockets.

The receiver binds and owns its inbox; any number of senders connect. Order is kept per sender, and the end of a sender is news
like any other: in its place after everything it sent. Plain sockets, because at few streams a token costs what waking costs:
one system call sends a message here and one receives it, and no helper thread wakes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from millstream.ipc.connection import Connection, sender_name
from millstream.ipc.frames import FrameReader, NotAMessage, decode, frame

log = logging.getLogger(__name__)

READ_BYTES = 1 << 18
MAX_FRAME_BYTES = 1 << 30  # a request is as long as its prompt; anything longer is no message of ours
BACKLOG = 512  # senders that may wait to be accepted: more than there are processes, for one more would be blocked


class SenderGone(NamedTuple):
    """A sender's connection has ended, and all it sent was taken. Comes from a `PullChannel`, in order with its messages."""

    sender: str


class Sender(Protocol):
    """What a manager needs to send; tests give it a list's append."""

    def send(self, message: Any) -> Any:
        """Hand over one message. Never blocks."""


class PushChannel:
    """The sending end. Owned by one thread. The receiver calls it `sender`.

    It connects with the first message, for nobody sends before every process is ready, and again where the receiver was
    replaced. What is sent to a process that is gone, or was never read by it, is lost, as the process is. Who must know
    that compares the numbers of connections: they count up from 1, and what went over one never comes by another.
    """

    def __init__(self, address: str, sender: str = "") -> None:
        self._address = address
        self._sender = sender
        self._encoder = msgspec.msgpack.Encoder()
        self._connection: Connection | None = None
        self._number = 0
        self._is_lost = False  # said once, not with every message

    def send(self, message: Any) -> int:
        """Encode and send or queue one message. Never blocks.

        Returns:
            The number of the connection that took it; 0 where nobody reads and it is lost.
        """
        data = frame(self._encoder.encode(message))
        if self._connection is not None:
            try:
                self._connection.send(data)
            except OSError:  # the receiver is gone; perhaps another has taken its place
                self.close()
            else:
                return self._number
        if self.connect():
            assert self._connection is not None
            try:
                self._connection.send(data)
            except OSError as error:
                self._lose(error)
            else:
                return self._number
        return 0

    def connect(self) -> int:
        """The number of a connection that was alive just now, made anew where the last one is over; 0: nobody reads."""
        if self._connection is not None and self._connection.is_over:
            self.close()
        if self._connection is None:
            try:
                self._connection = Connection(self._address, self._sender)
            except OSError as error:
                self._lose(error)
                return 0
            self._number += 1
            self._is_lost = False
        return self._number

    @property
    def is_over(self) -> bool:
        """Whether there is no connection, or nobody reads at its other end any more."""
        return self._connection is None or self._connection.is_over

    @property
    def receiver_pid(self) -> int:
        """The process at the other end; 0 without a connection."""
        return 0 if self._connection is None else self._connection.receiver_pid

    def close(self) -> None:
        """Close. What was sent will be read; what is queued is lost."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lose(self, error: OSError) -> None:
        if not self._is_lost:
            log.error("nobody reads at %s: %s", self._address, error)
        self._is_lost = True
        self.close()


class _Source(NamedTuple):
    """One connection from a sender."""

    socket: socket.socket
    reader: FrameReader
    name: str


class PullChannel:
    """The receiving end: binds `address` and decodes frames to `types`. Owned by one thread.

    A frame that does not decode is counted in `bad_frames` and dropped: nobody else's messages are touched. A sender with a
    name has one connection: when a second one comes, its first is read to the end before.
    """

    def __init__(self, address: str, types: Any) -> None:
        self._address = address
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(address)
        self._listener.listen(BACKLOG)
        self._decoder = msgspec.msgpack.Decoder(types)
        self._sources: dict[int, _Source] = {}
        self._chunk = memoryview(bytearray(READ_BYTES))
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._watched: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[Any], None] | None = None
        self.bad_frames = 0

    def watch(self, fd: int) -> None:
        """Let `receive` end its wait for `fd`, too, and report it."""
        self._watched.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def receive(self, timeout_s: float | None = 0) -> tuple[list[Any], bool]:
        """Take what has arrived, waiting for something to arrive up to `timeout_s`, or for ever with None.

        Returns:
            The messages, in order for each sender, perhaps none; and whether a watched descriptor is readable.
        """
        messages: list[Any] = []
        is_alerted = False
        for fd, _ in self._epoll.poll(timeout_s):
            if fd in self._sources:
                messages += self._read(fd)
            elif fd == self._listener.fileno():
                messages += self._accept()
            elif fd in self._watched:
                is_alerted = True
        return messages, is_alerted

    def pump(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[Any], None]) -> None:
        """Deliver messages to `on_message` from the event loop until `close`."""
        self._loop = loop
        self._on_message = on_message

        def accept() -> None:
            for message in self._accept():
                on_message(message)

        loop.add_reader(self._listener.fileno(), accept)

    def deliver_all(self) -> None:
        """Deliver everything that was sent up to now, of senders that are not accepted yet, too. For a channel with a pump."""
        assert self._on_message is not None
        while _is_readable(self._listener.fileno()):
            for message in self._accept():
                self._on_message(message)
        for fd in list(self._sources):
            while fd in self._sources and _is_readable(fd):
                self._deliver(fd)

    def close(self) -> None:
        """Stop receiving and remove the socket file."""
        self._epoll.close()
        for fd in list(self._sources):
            self._drop(fd)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if os.path.exists(self._address):
            os.unlink(self._address)

    def _deliver(self, fd: int) -> None:
        assert self._on_message is not None
        if fd in self._sources:  # what the event loop saw may have been taken since
            for message in self._read(fd):
                self._on_message(message)

    def _accept(self) -> list[Any]:
        """Take on a sender. Returns what its predecessor of the same name had still to say."""
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:  # taken since it was seen
            return []
        sock.setblocking(False)
        name = sender_name(address)
        messages: list[Any] = []
        for fd in [fd for fd, source in self._sources.items() if name and source.name == name]:
            while fd in self._sources:
                messages += self._read(fd, is_over=True)
        self._sources[sock.fileno()] = _Source(sock, FrameReader(MAX_FRAME_BYTES), name)
        if self._loop is None:
            self._epoll.register(sock, select.EPOLLIN)
        else:
            self._loop.add_reader(sock.fileno(), self._deliver, sock.fileno())
        return messages

    def _drop(self, fd: int) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)
        self._sources.pop(fd).socket.close()

    def _read(self, fd: int, *, is_over: bool = False) -> list[Any]:
        """Take one sender's messages; its descriptor stays readable where more has arrived. `is_over`: nothing more comes."""
        source = self._sources[fd]
        try:
            size = source.socket.recv_into(self._chunk)
            frames = source.reader.feed(self._chunk[:size])
        except BlockingIOError:
            if not is_over:
                return []
            size, frames = 0, []
        except (ConnectionResetError, ValueError) as error:
            log.error("a sender is cut off: %s", error)
            size, frames = 0, []
        messages: list[Any] = []
        for each in frames:
            try:
                messages.append(decode(self._decoder, each))
            except NotAMessage as error:
                self._count_bad_frame(each, error)
        if not size:
            self._drop(fd)
            if source.name:
                messages.append(SenderGone(source.name))
        return messages

    def _count_bad_frame(self, data: bytes, error: Exception) -> None:
        self.bad_frames += 1
        if self.bad_frames & (self.bad_frames - 1) == 0:  # the 1st, 2nd, 4th, ...: one bad sender must not fill the log
            log.error("dropped a message that does not decode (%d bytes, number %d): %s", len(data), self.bad_frames, error)


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
