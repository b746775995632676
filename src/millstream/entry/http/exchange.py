"""Exchange: one HTTP request and its answer, over bare ASGI. Reads the body within limits, watches for the client leaving.

Made by the app for each request. Exactly one coroutine may read from the client: first the body, then `while_connected`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from millstream.entry.caller import Caller
from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.http.body import decode_body
from millstream.entry.http.dialect import dialect_of, request_id
from millstream.entry.http.direct import DirectWriter
from millstream.entry.http.errors import (
    Header,
    body_too_large,
    error_headers,
    unsupported_content_encoding,
    unsupported_media_type,
)
from millstream.entry.tape import Tape
from millstream.errors import RequestError
from millstream.observe.trace_context import trace_context

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# keys in the scope's extensions, which only our own server sets
TRANSPORT = "millstream.transport"  # the connection, to close it
DIRECT = "millstream.direct"  # a `DirectWriter` of the connection
JSON = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class Exchange:
    """One request and its answer. `request_id` is the client's `X-Request-Id` or ours: answered and logged, never a key."""

    def __init__(self, scope: Message, receive: Receive, send: Send, *, max_body_bytes: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.dialect = dialect_of(self.path)
        self.started = False
        self._query: bytes = scope.get("query_string", b"")
        self.is_admin = False  # the app says so
        self.owner = ""  # a digest of the client's API key, where it has one that is known; the app says so
        self.parameters: dict[str, str] = {}  # what stands in the path where its route has a name in braces
        self.more_headers: list[Header] = []  # of the answer, whatever it is
        self.hold: Callable[[int], None] = lambda size: None  # counts bytes of the body as they are read, and may refuse them
        self._headers: Sequence[Header] = scope["headers"]
        extensions = scope.get("extensions", {})
        self._transport: asyncio.Transport | None = extensions.get(TRANSPORT)
        self.direct: DirectWriter | None = extensions.get(DIRECT)  # for parts of a stream that has started
        self.tape: Tape | None = None  # is told what is read and written, where that is recorded
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self.request_id = request_id(self._headers)
        self.trace = trace_context(self.header(b"traceparent"))

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return next((value for key, value in self._headers if key == name), None)

    @property
    def caller(self) -> Caller:
        """Who asks, once the app has said whose key it is."""
        return Caller(self.request_id, self.owner, self.trace, self.tape)

    @property
    def query(self) -> dict[str, str]:
        """The parameters behind the path; the last of several with one name."""
        return dict(parse_qsl(self._query.decode("latin-1"), keep_blank_values=True))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the connection has not taken yet, of this answer and those before it."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def read_object(self) -> dict[str, Any]:
        """Read the body as one JSON object.

        Raises:
            RequestFailed: too large (413) or declared as something other than JSON (415).
            OverloadError: too much is held already.
            RequestError: not declared, not JSON, or not an object.
            ClientGone: the client left before the body was complete.
        """
        self._check_content_type()
        self._check_content_encoding()
        return await decode_body(await self._read_body())

    def _check_content_type(self) -> None:
        # a web page may post other types, and bodies without one, to a server on its reader's machine without asking first
        content_type = self.header(b"content-type")
        if content_type is None:
            raise RequestError(
                "The Content-Type header is missing; it must be `application/json`.", code="missing_content_type"
            )
        if content_type.split(b";")[0].strip().lower() != b"application/json":
            raise RequestFailed(unsupported_media_type(content_type.decode("latin-1")))

    def _check_content_encoding(self) -> None:
        encoding = self.header(b"content-encoding") or b""
        if encoding.strip().lower() not in (b"", b"identity"):
            raise RequestFailed(unsupported_content_encoding(encoding.decode("latin-1")))

    async def _read_body(self) -> bytes:
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._max_body_bytes:
            raise RequestFailed(body_too_large(self._max_body_bytes))
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                raise RequestFailed(body_too_large(self._max_body_bytes))
            self.hold(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                body = b"".join(parts)
                if self.tape is not None:
                    self.tape.asked(self.method, self.path, body)
                return body

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, and cancel it the moment the client leaves.

        Raises:
            ClientGone: it left first; `work` was cancelled and is done.
        """
        task = asyncio.create_task(work)
        watcher = asyncio.create_task(self.wait_gone())
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
        finally:
            for each in (task, watcher):
                each.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)
        await task

    async def wait_gone(self) -> None:
        """Wait until the server knows that the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send_json(self, body: Any, *, status: int = 200, headers: Sequence[Header] = ()) -> None:
        """Answer with `body` as JSON; bytes are taken as JSON already."""
        await self._send_whole(JSON, body if isinstance(body, bytes) else msgspec.json.encode(body), status, headers)

    async def send_text(self, body: bytes, content_type: str, *, headers: Sequence[Header] = ()) -> None:
        """Answer with something else than JSON."""
        await self._send_whole((b"content-type", content_type.encode("ascii")), body, headers=headers)

    async def send_empty(self, headers: Sequence[Header], *, status: Literal[204, 304] = 204) -> None:
        """Answer with a status that has no body."""
        await self._start(status, list(headers))
        await self._write({"type": "http.response.body", "body": b""})

    async def send_failure(self, failure: Failure, *, headers: Sequence[Header] = ()) -> None:
        """Answer with an error: status and envelope."""
        body = self.dialect.error_body(failure, self.request_id)
        await self.send_json(body, status=failure.status, headers=[*error_headers(failure), *headers])

    async def start_stream(self) -> None:
        """Send status and headers of a stream of server-sent events."""
        await self._start(
            200,
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),  # proxies must pass each event on at once
            ],
        )

    async def send_part(self, data: bytes) -> None:
        """Send a part of a stream; waits while the client does not read."""
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        """Send the last part of a stream."""
        await self._write({"type": "http.response.body", "body": data})

    def drop_connection(self) -> None:
        """End the connection at once, unsent data and all."""
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # closed already
                self._transport.abort()

    async def _send_whole(self, kind: Header, data: bytes, status: int = 200, headers: Sequence[Header] = ()) -> None:
        await self._start(status, [kind, (b"content-length", b"%d" % len(data)), *headers])
        await self._write({"type": "http.response.body", "body": data})

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        headers += self.more_headers
        value = self.request_id.encode("ascii")
        headers += [(name, value) for name in self.dialect.id_headers]
        headers.append((b"traceparent", self.trace.header.encode("ascii")))
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, message: Message) -> None:
        """Hand a part of the answer to the connection.

        Raises:
            ClientGone: the connection is closed.
        """
        if self._transport is not None and self._transport.is_closing():
            raise ClientGone
        if self.tape is not None:
            self.tape.wrote(message)
        await self._send(message)
