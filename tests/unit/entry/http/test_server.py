"""The HTTP server over real sockets: bounds that ASGI never sees, and disconnects."""

from __future__ import annotations

import asyncio
import socket

import pytest

from millstream.config import ServerConfig
from millstream.entry.http.protocol import MAX_HEADER_BYTES
from millstream.messages import AbortReq, PauseReq, ResumeReq, Stop, TokenizedGenerateReqInput
from tests.support.asgi import run
from tests.support.engine import Entry
from tests.support.http import error_of, post_bytes, running, serving
from tests.support.sse import joined_content, parse_events


@pytest.mark.parametrize("kind", ["one-header", "many-headers", "url", "chunk-extension"])
def test_endless_headers_are_cut_off(kind: str) -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            starts = {
                "one-header": b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ",
                "many-headers": b"GET /health HTTP/1.1\r\nHost: x\r\n",
                "url": b"GET /",
                "chunk-extension": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=",
            }
            filler = b"X-A: b\r\n" * 1024 if kind == "many-headers" else b"a" * 8192
            writer.write(starts[kind])
            sent = 0
            try:
                while sent < 64 * 1024 * 1024:
                    writer.write(filler)
                    await writer.drain()
                    sent += len(filler)
            except ConnectionError:
                pass
            assert sent < 64 * 1024 * 1024
            writer.close()

    run(scenario())


def test_headers_over_the_limit_get_431_in_the_envelope() -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nX-Big: " + b"a" * (MAX_HEADER_BYTES + 1))
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert error_of(answer)["code"] == "headers_too_large"
            writer.close()

    run(scenario())


def test_bytes_that_are_no_http_get_400_in_the_envelope() -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello there\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert error_of(answer)["code"] == "bad_http"
            writer.close()

    run(scenario())


def test_an_ordinary_body_of_many_parts_is_no_header() -> None:
    async def scenario() -> None:
        entry = Entry()
        async with serving(entry) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = post_bytes({"messages": [{"role": "user", "content": "x"}], "user": "u" * 1_000_000})
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(scenario())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_closed_connection_is_one_abort(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with serving(entry) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": "r", "stream": stream}))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            if stream:
                await reader.readuntil(b"assistant")
            writer.close()
            await entry.engine.wait_sent(AbortReq)
            entry.engine.end("r")
        assert entry.engine.aborts == [AbortReq("r", "client_gone")]
        assert entry.manager.live_requests == 0

    run(scenario())


def test_a_failed_stream_is_whole_as_http_and_its_connection_takes_the_next_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: (entry.engine.accept(sent.rid), entry.engine.end(sent.rid, "engine_error"))  # type: ignore[func-returns-value]
        async with serving(entry) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(post_bytes({"messages": [{"role": "user", "content": "x"}], "stream": True}))
                answer = await reader.readuntil(b"0\r\n\r\n")
                assert b'data: {"error"' in answer
            writer.close()

    run(scenario())


def test_a_client_that_never_reads_is_dropped_and_its_request_aborted() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(write_timeout_s=0.1))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with serving(entry) as port:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.sendall(post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": "r", "stream": True}))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            while not entry.engine.aborts:
                entry.engine.row("r", "x" * 65536)
                await asyncio.sleep(0.001)
            entry.engine.end("r")
            assert entry.manager.live_requests == 0
            sock.close()

    run(scenario())


async def read_stream(reader: asyncio.StreamReader) -> bytes:
    """The body of one chunked answer, taken apart strictly."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding: chunked" in head
    body = b""
    while (size := int(await reader.readline(), 16)) > 0:
        part = await reader.readexactly(size + 2)
        assert part.endswith(b"\r\n")
        body += part[:-2]
    assert await reader.readline() == b"\r\n"
    return body


def test_streams_leave_a_connection_that_serves_on() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with serving(entry) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for turn in range(3):
                writer.write(post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": f"r{turn}", "stream": True}))
                await entry.engine.wait_sent(TokenizedGenerateReqInput, turn + 1)
                for number in range(20):
                    entry.engine.row(f"r{turn}", f"é{number}")
                    await asyncio.sleep(0)
                entry.engine.row(f"r{turn}", "", finish=Stop())
                events = parse_events(await read_stream(reader))
                assert joined_content(events) == "".join(f"é{number}" for number in range(20))
                assert events[-1].data == "[DONE]"
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(scenario())


def test_a_client_that_pauses_gets_everything_in_order() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with serving(entry) as port:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.sendall(post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": "r", "stream": True}))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            pieces = [f"{number}:" + "x" * 20_000 for number in range(400)]  # 8 MB: more than the kernel keeps
            for piece in pieces:
                entry.engine.row("r", piece)
                await asyncio.sleep(0)
            entry.engine.row("r", "", finish=Stop())
            reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 24)
            events = parse_events(await read_stream(reader))
            assert joined_content(events) == "".join(pieces)
            assert len(events) < 400  # what waited was joined
            writer.close()

    run(scenario())


def test_a_pause_lasts_until_the_client_has_read_what_the_connection_holds() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_unsent_bytes=256 * 1024))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with running(entry) as (server, port):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.sendall(post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": "r", "stream": True}))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            (connection,) = server.server_state.connections
            text = ""
            while not isinstance(entry.engine.sent[-1], PauseReq):
                entry.engine.row("r", "x" * 1024)
                text += "x" * 1024
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
            received = b""
            while connection.transport.get_write_buffer_size() < 128 * 1024:  # before it held 64 KiB, and the rest waited
                received += await reader.read(4096)
            assert isinstance(entry.engine.sent[-1], PauseReq)
            while not isinstance(entry.engine.sent[-1], ResumeReq):
                received += await reader.read(4096)
            entry.engine.row("r", "", finish=Stop())
            while not received.endswith(b"0\r\n\r\n"):
                received += await reader.read(4096)
            assert received.count(b"x" * 1024) == len(text) // 1024
            writer.close()

    run(scenario())
