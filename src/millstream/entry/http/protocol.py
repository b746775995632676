"""One connection: uvicorn's protocol with bounds on what a client may send and how long it may keep us waiting.

Made by the server for each connection. All limits on a connection are here. Rules: broken or endless HTTP is answered in the
path's error envelope; requests sent ahead are answered in order; a client that leaves ends every request of its connection.
"""

from __future__ import annotations

import http
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from millstream.entry.failure import Failure, shutting_down
from millstream.entry.http.dialect import dialect_of, request_id
from millstream.entry.http.direct import DirectWriter
from millstream.entry.http.errors import (
    bad_http,
    headers_too_large,
    no_upgrade,
    request_timeout,
    request_too_slow,
    too_many_connections,
    too_many_headers,
)
from millstream.entry.http.exchange import DIRECT, TRANSPORT

MAX_HEADER_BYTES = 64 * 1024  # request line and headers; httptools itself has no limit
MAX_HEADERS = 128
MAX_AHEAD = 16  # requests that may wait for the answer to an earlier one
MAX_AHEAD_BYTES = 64 * 1024  # body of the newest of them
MIN_BYTES_PER_S = 1024  # a request that comes more slowly, after the read timeout, only keeps a place from others
EXTRA_TIMEOUT_S = 1.0  # what a connection too many may be silent for
LINGER_S = 1.0  # what a client gets to read why it was refused,
LINGER_BYTES = 1024 * 1024  # and may send meanwhile
_OVERHEAD = 4  # bytes of `: ` and the line break


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection with limits. The server calls `check_timeouts` now and then, and `shutdown` at its end."""

    read_timeout_s: ClassVar[float]
    write_timeout_s: ClassVar[float]
    max_connections: ClassVar[int]

    url = b""  # of the newest request; uvicorn sets it
    _running: RequestResponseCycle | None = None  # the request being answered; uvicorn's `cycle` is the newest, maybe queued
    _is_extra = False  # one connection too many: its first request is refused, and it gets no time to send one
    _in_message = False  # a request has begun and its body is not complete
    _begun_at = 0.0
    _message_bytes = 0  # read since then
    _progress = False  # headers, body or end were reached since the last read
    _unparsed_bytes = 0  # read since then: headers, trailers or chunk extensions that have not come to an end
    _header_bytes = 0
    _deaf = False  # what still comes is thrown away; the connection ends after the running answer
    _deaf_bytes = 0
    _is_refused = False  # the last that this client hears of us is on its way
    _failure: Failure | None = None  # why a parser callback raised
    _unsent = 0
    _read_at = 0.0
    _taken_at = 0.0  # when the client last took something, or had nothing to take

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_extra = len(self.connections) > self.max_connections
        self._direct = DirectWriter(transport, self.flow)
        self._read_at = self._taken_at = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        self._read_at = self.loop.time()
        if self._deaf:
            self._deaf_bytes += len(data)
            if self._is_refused and self._deaf_bytes > LINGER_BYTES:
                self.transport.close()
            return
        self._progress = False
        super().data_received(data)
        self._message_bytes += len(data)
        self._unparsed_bytes = 0 if self._progress else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEADER_BYTES:
            self._refuse(headers_too_large(MAX_HEADER_BYTES))
        if self.pipeline:
            if len(self.pipeline) > MAX_AHEAD or len(self.cycle.body) > MAX_AHEAD_BYTES:
                self._stop_listening()
            self._read_on()

    def on_message_begin(self) -> None:
        self._in_message = True
        self._begun_at = self._read_at
        self._message_bytes = 0
        self._header_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = cast("Any", {TRANSPORT: self.transport, DIRECT: self._direct})

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + _OVERHEAD)

    def on_headers_complete(self) -> None:
        self._progress = True
        if self._is_extra:
            self._failure = too_many_connections(self.max_connections)
            raise ValueError(self._failure.code)
        if self.parser.should_upgrade():
            self._decline_upgrade()
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        self._in_message = False
        super().on_message_complete()

    def resume_writing(self) -> None:
        self._taken_at = self.loop.time()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._failure or bad_http(msg))

    def check_timeouts(self, now: float) -> None:
        """End the connection where the client owes bytes, or leaves ours unread, for too long."""
        if self._is_refused:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent or self._answering():
            self._taken_at = now
        self._unsent = unsent
        if now - self._taken_at >= self.write_timeout_s:
            self.transport.abort()
        elif self._awaits_bytes() and now - self._read_at >= (EXTRA_TIMEOUT_S if self._is_extra else self.read_timeout_s):
            if self._in_message:
                self._refuse(request_timeout(self.read_timeout_s))
            else:
                self.transport.close()
        elif self._in_message and now - self._begun_at >= self.read_timeout_s + self._message_bytes / MIN_BYTES_PER_S:
            self._refuse(request_too_slow(self._message_bytes, now - self._begun_at))

    def shutdown(self) -> None:
        """Called once, when the server ends: answers under way are completed, all else is refused or closed."""
        if self._running is None or self._running.response_complete:
            self.transport.close()
        else:
            self._refuse(shutting_down())

    def _unsupported_upgrade_warning(self) -> None:
        """A client's choice is no news to the operator."""

    def _decline_upgrade(self) -> None:
        """Go on in HTTP/1.1, as HTTP lets us. But the parser takes all that follows the headers for the other protocol: so a
        body is refused, instead of lost, or read as a request, and nothing is read after this request.
        """
        names = {name for name, value in self.headers if (name, value) != (b"content-length", b"0")}
        if names & {b"content-length", b"transfer-encoding"}:
            self._failure = no_upgrade()
            raise ValueError(self._failure.code)
        self._deaf = True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _answering(self) -> bool:
        """Whether the connection waits for us, or for a client that its stream watches (`entry.sse`)."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return not self.flow.write_paused or bool(running.chunked_encoding)

    def _awaits_bytes(self) -> bool:
        """Whether the client has not finished a request. Between requests, uvicorn's own keep-alive timer runs."""
        idle = self.cycle is None or self.cycle.response_complete
        return self._in_message or (idle and self.timeout_keep_alive_task is None)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._failure = headers_too_large(MAX_HEADER_BYTES)
        elif len(self.headers) > MAX_HEADERS:
            self._failure = too_many_headers(MAX_HEADERS)
        if self._failure is not None:
            raise ValueError(self._failure.code)  # the parser stops, and uvicorn calls `send_400_response`

    def _refuse(self, failure: Failure) -> None:
        """Answer what is being read with `failure` and close; where an earlier request is being answered, close after it."""
        running = self._running
        if running is not None and not running.response_complete and (running.response_started or not running.more_body):
            self._stop_listening()
            return
        if self.transport.is_closing() or self._is_refused:
            return
        self._deaf = self._is_refused = True
        if self.cycle is not None and self.cycle.scope is self.scope and self.cycle.response_complete:
            self.transport.close()  # answered before it was complete
            return
        dialect = dialect_of(self.url.partition(b"?")[0].decode("latin-1"))
        id_ = request_id(self.headers or ())
        body = dialect.error_body(failure, id_)
        retry = "" if failure.retry_after_s is None else f"retry-after: {failure.retry_after_s}\r\n"
        ids = "".join(f"{name.decode()}: {id_}\r\n" for name in dialect.id_headers)
        head = (
            f"HTTP/1.1 {failure.status} {http.HTTPStatus(failure.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{retry}{ids}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self._linger()

    def _linger(self) -> None:
        """Say that this was all, and read on for a moment: closed over unread bytes, a connection may lose the answer."""
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _stop_listening(self) -> None:
        """Read on, only to see the client leave, and close after the running answer. HTTP lets a client send the rest again."""
        self._deaf = True
        self.pipeline.clear()
        if self._running is not None:
            self._running.keep_alive = False
        self._read_on()

    def _read_on(self) -> None:
        """uvicorn pauses reading where a request is sent ahead, and would not see the client leave."""
        if not self.transport.is_closing():
            self.flow.resume_reading()
