"""The HTTP server of the entry on a real socket, around a fake engine, and requests as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.entry.http.server import EntryServer
from millstream.launch.listen import bind
from tests.support.engine import Entry


@asynccontextmanager
async def running(entry: Entry) -> AsyncIterator[tuple[EntryServer, int]]:
    """A running server and its port."""
    sock = bind("127.0.0.1", 0)
    server = EntryServer(entry.app, entry.service.config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield server, sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def serving(entry: Entry) -> AsyncIterator[int]:
    """The port of a running server."""
    async with running(entry) as (_, port):
        yield port


def post_bytes(body: object, path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


def error_of(answer: bytes) -> dict[str, object]:
    error: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
