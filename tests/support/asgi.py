"""Drive an ASGI app by hand, event by event: what it sends is seen at once, and the client can block or leave at any point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.support.sse import Event, parse_events

T = TypeVar("T")
TIMEOUT_S = 60.0


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; one that hangs fails."""
    return asyncio.run(asyncio.wait_for(scenario, TIMEOUT_S))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until `condition` holds: for what rings no bell that a test could wait for."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Response:
    """A finished answer."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def body(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    @property
    def events(self) -> list[Event]:
        return parse_events(self.content)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.data != "[DONE]"]


class Call:
    """One request in flight. Make it inside a running loop."""

    def __init__(
        self,
        app: Any,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: dict[str, str | None] | None = None,
        parts: list[bytes] | None = None,
        direct: Any = None,
        query: bytes = b"",
    ) -> None:
        if parts is None:
            parts = [body if isinstance(body, bytes) else json.dumps(body).encode()]
        given: dict[str, str | None] = {"content-type": "application/json"} | (headers or {})  # None leaves a header out
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for index, part in enumerate(parts):
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": index < len(parts) - 1})
        self._open = asyncio.Event()
        self._open.set()
        self._news = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.closed = False
        self.unsent = 0  # bytes that the connection says it holds
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items() if v is not None],
            "extensions": {"millstream.transport": self, "millstream.direct": direct},
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        message = await self._incoming.get()
        if message["type"] == "http.disconnect":
            self._incoming.put_nowait(message)  # a server says it again and again
        return message

    async def _send(self, message: dict[str, Any]) -> None:
        await self._open.wait()
        self.sent.append(message)
        self._news.set()

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True
        self.disconnect()

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})
        self._open.set()

    def stop_reading(self) -> None:
        self._open.clear()

    def read_on(self) -> None:
        self._open.set()

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def until(self, needle: bytes) -> None:
        """Wait until the answer so far holds `needle`."""
        while needle not in self.content:
            self._news.clear()
            await self._news.wait()

    async def response(self) -> Response:
        """The whole answer."""
        await self.task
        start = self.sent[0]
        assert start["type"] == "http.response.start"
        assert not self.sent[-1].get("more_body", False)
        headers = {key.decode(): value.decode() for key, value in start["headers"]}
        return Response(start["status"], headers, self.content)


async def post(app: Any, path: str, body: Any = None, **more: Any) -> Response:
    """One request, start to end."""
    return await Call(app, path, body, **more).response()


async def get(app: Any, path: str) -> Response:
    return await Call(app, path, b"", method="GET", headers={}).response()
