"""Connection: one connection to an inbox, from the sender's side, and the name by which the receiver knows it.

Used by `PushChannel` alone, which makes another when one is over.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import threading
from collections import deque

_NAMED = b"\0millstream/"  # the socket of a sender with a name has an address of its own, which ends in the name
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def _sender_address(name: str) -> bytes:
    return _NAMED + f"{secrets.token_hex(8)}/{name}".encode()


def sender_name(address: object) -> str:
    """The name of the sender whose socket has this address; empty where it has none."""
    if not isinstance(address, bytes) or not address.startswith(_NAMED):
        return ""
    return address.rpartition(b"/")[2].decode()


class Connection:
    """One connection to an inbox. Raises OSError where it is over.

    What the socket cannot take at once goes out from a thread that lives as long as there is a backlog: a blocked send would
    stop a loop that others rely on. The backlog is bounded by admission (requests x tokens).
    """

    def __init__(self, address: str, sender: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = threading.Lock()  # over the backlog
        self._backlog: deque[bytes] = deque()
        try:
            if sender:
                self._socket.bind(_sender_address(sender))
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.receiver_pid: int = _CREDENTIALS.unpack(credentials)[0]
        self._socket.setblocking(False)

    @property
    def is_over(self) -> bool:
        """Whether the receiver has closed its end."""
        poller = select.poll()
        poller.register(self._socket, 0)  # a hang-up is always reported
        return bool(poller.poll(0))

    def send(self, data: bytes) -> None:
        """Send or queue one frame."""
        with self._lock:
            if self._backlog:
                self._backlog.append(data)
                return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._backlog.append(data[sent:])
            threading.Thread(target=self._send_backlog, daemon=True).start()

    def close(self) -> None:
        """Close it; what is queued is lost."""
        self._socket.close()

    def _send_backlog(self) -> None:
        sock = self._socket
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
