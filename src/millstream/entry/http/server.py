"""The HTTP server: uvicorn on a socket of ours, with bounded headers, our error bodies and no signal handlers.

Used by the entry process. The supervisor says when to stop, through the control link; nobody else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millstream.entry.failure import Failure
from millstream.entry.http.direct import DirectWriter
from millstream.entry.http.errors import bad_http, error_body, headers_too_large
from millstream.entry.http.exchange import DIRECT, TRANSPORT
from millstream.errors import StartupError

MAX_HEADER_BYTES = 64 * 1024  # httptools itself has no limit
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed under a request
BACKLOG = 2048  # connections that may wait to be accepted
CLOSE_TIMEOUT_S = 2  # what open responses get after the drain


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses endless headers and answers broken HTTP with the error envelope."""

    _progress = False  # headers, body or end were reached since the last read
    _unparsed_bytes = 0  # read since then: headers, trailers or chunk extensions that have not come to an end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._direct = DirectWriter(transport, self.flow)

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._unparsed_bytes = 0 if self._progress else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(headers_too_large(MAX_HEADER_BYTES))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = cast("Any", {TRANSPORT: self.transport, DIRECT: self._direct})

    def on_headers_complete(self) -> None:
        self._progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(bad_http(msg))

    def _refuse(self, failure: Failure) -> None:
        body = error_body(failure)
        phrase = http.HTTPStatus(failure.status).phrase
        head = (
            f"HTTP/1.1 {failure.status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()


class EntryServer(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone. `should_exit = True` stops it."""

    def __init__(self, app: Any) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it does when all is well is ours to say
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here depends on who or what stands before us
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket for `host` and `port` (0: any free one).

    Raises:
        StartupError: the address is in use, not ours, or no address at all.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartupError(f"`{host}` is not an address to listen on: {error}.", hint="check --host") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # here, not in the server: only now is it certain that nobody else has the port
    except (OSError, OverflowError) as error:
        sock.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {error}.", hint="another server may run there: try --port 0 for a free port"
        ) from None
    sock.set_inheritable(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client on this machine finds a bound socket."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
