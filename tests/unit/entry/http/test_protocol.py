"""One connection over a real socket: requests sent ahead, bounds on headers, silent clients, clients that do not read."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.http.protocol import MAX_AHEAD, MAX_HEADERS
from millstream.messages import AbortReq, TokenizedGenerateReqInput
from tests.support.asgi import run, until
from tests.support.engine import Entry, hold
from tests.support.http import error_of, post_bytes, running, serving

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"


def chat(rid: str, **more: Any) -> bytes:
    return post_bytes({"messages": [{"role": "user", "content": "x"}], "rid": rid, **more})


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """One whole answer with a JSON body."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


@pytest.mark.parametrize(
    "ahead", [chat("a"), chat("a") * (MAX_AHEAD + 5), chat("a") + b"no http\r\n\r\n"], ids=["one", "many", "broken"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_with_requests_sent_ahead_is_one_abort(
    stream: bool, ahead: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        async with serving(entry) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(chat("r", stream=stream) + ahead)
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            writer.close()
            await entry.engine.wait_sent(AbortReq)
            entry.engine.end("r")
        assert entry.engine.aborts == [AbortReq("r", "client_gone")]
        assert [request.rid for request in entry.engine.requests] == ["r"]
        assert entry.manager.live_requests == 0

    run(scenario())
    assert "Traceback" not in caplog.text


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(chat("a") + HEALTH + post_bytes({"prompt": 5}, "/tokenize") + chat("b"))
            bodies = [await read_answer(reader) for _ in range(4)]
            assert [status for status, _, _ in bodies] == [200, 200, 400, 200]
            assert [bodies[0][2]["id"], bodies[3][2]["id"]] == ["chatcmpl-a", "chatcmpl-b"]
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    "ahead",
    [HEALTH * (MAX_AHEAD + 1), post_bytes({"prompt": "x" * 100_000}, "/tokenize"), b"no http\r\n\r\n"],
    ids=["many", "large", "broken"],
)
def test_too_much_sent_ahead_ends_the_connection_after_the_running_answer(ahead: bytes) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        async with running(entry) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(chat("r"))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            writer.write(ahead)
            await until(lambda: any(vars(each).get("_deaf") for each in server.server_state.connections))
            entry.engine.say("Hello")(entry.engine.requests[0])
            status, headers, body = await read_answer(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert body["choices"][0]["message"]["content"] == "Hello"
            assert await reader.read() == b""
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"a" * 70_000 + b"\r\n", b"X: a\r\n" * (MAX_HEADERS + 1)],
    ids=["large", "many"],
)
def test_headers_over_a_limit_are_refused_though_they_come_in_one_piece(headers: bytes) -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\n" + headers + b"\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert error_of(answer)["code"] == "headers_too_large"
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    "sent",
    [HEAD, HEAD + b"\r\n", HEAD + b'\r\n{"mess', b"GE", HEAD + b"Expect: 100-continue\r\n\r\n"],
    ids=["half-head", "no-body", "half-body", "half-line", "100-continue"],
)
def test_a_request_that_does_not_go_on_gets_408(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(Entry(ServerConfig(read_timeout_s=0.1))) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = (await reader.read()).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_of(answer)["code"] == "request_timeout"
            writer.close()

    run(scenario())
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX-Slow: ", HEAD + b"\r\n{"], ids=["headers", "body"])
def test_a_request_that_comes_byte_by_byte_gets_408(start: bytes) -> None:
    async def scenario() -> None:
        async with serving(Entry(ServerConfig(read_timeout_s=0.3))) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            reading = asyncio.create_task(reader.read())
            while not (await asyncio.wait((reading,), timeout=0.02))[0]:
                writer.write(b" ")  # never silent for long
            answer = await reading
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_of(answer)["code"] == "request_timeout"
            writer.close()

    run(scenario())


def test_the_read_timeout_ends_a_silent_connection_but_none_that_waits_for_us_or_rests() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(read_timeout_s=0.1))
        async with serving(entry) as port:
            resting, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTH)
            await read_answer(resting)
            entry.engine.answer = hold
            waiting, waiting_writer = await asyncio.open_connection("127.0.0.1", port)
            waiting_writer.write(chat("r"))
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            for first in (b"", b"\r\n"):
                silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
                silent_writer.write(first)
                assert await silent.read() == b""  # closed, after the others were silent for as long
                silent_writer.close()
            entry.engine.say("Hello")(entry.engine.requests[0])
            assert (await read_answer(waiting))[0] == 200
            writer.write(HEALTH)
            assert (await read_answer(resting))[0] == 200
            writer.close()
            waiting_writer.close()

    run(scenario())


def test_a_whole_answer_that_is_never_read_is_dropped() -> None:
    async def scenario() -> None:
        async with running(Entry(ServerConfig(write_timeout_s=0.1), context_length=100_000)) as (server, port):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            request = post_bytes({"prompt": ["a " * 50_000] * 16}, "/tokenize")
            await asyncio.get_running_loop().sock_sendall(sock, request)
            await until(lambda: bool(server.server_state.connections))
            await until(lambda: not server.server_state.connections)
            sock.close()

    run(scenario())


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b'\r\n{"mess', HEALTH], ids=["silent", "half-head", "half-body", "resting"])
def test_at_the_end_of_the_server_an_unfinished_request_is_no_fault(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(Entry()) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            if sent == HEALTH:
                await read_answer(reader)
            else:
                await until(lambda: bool(server.server_state.connections))
            if sent.endswith(b"mess"):
                await until(lambda: bool(server.server_state.tasks))
            server.should_exit = True
            answer = await reader.read()
            if answer:
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert error_of(answer)["code"] == "shutting_down"
            assert bool(answer) == sent.endswith(b"mess")
            writer.close()

    run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("pause", [False, True], ids=["at-once", "body-later"])
def test_a_body_behind_an_upgrade_is_refused_and_never_taken_for_a_request(pause: bool) -> None:
    body = b'POST /abort_request HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{"abort_all": true}'

    async def scenario() -> None:
        entry = Entry()
        async with serving(entry) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (len(body), UPGRADE)
            writer.write(head if pause else head + body + HEALTH)
            answer = await reader.readuntil(b"}}")
            if pause:
                writer.write(body)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert error_of(answer)["code"] == "no_upgrade"
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_an_upgrade_without_a_body_is_declined_and_the_request_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(Entry()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n%b\r\n" % UPGRADE + HEALTH)
            answer = await reader.read()  # to the end: nothing is read after it
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.count(b"HTTP/1.1") == 1
            writer.close()

    run(scenario())
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)


def test_a_connection_too_many_is_refused_and_gets_no_time_and_the_others_are_served() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_connections=2))
        async with running(entry) as (server, port):
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await until(lambda: len(server.server_state.connections) == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post_bytes({"messages": [{"role": "user", "content": "hi"}]}))
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: 1\r\n" in answer
            assert error_of(answer)["code"] == "too_many_connections"
            writer.close()
            silent, idle = await asyncio.open_connection("127.0.0.1", port)
            assert await silent.read() == b""
            idle.close()
            for _, used in (first, second):
                used.write(post_bytes({"messages": [{"role": "user", "content": "hi"}]}))
            for answering, used in (first, second):
                assert (await answering.readline()).startswith(b"HTTP/1.1 200 ")
                used.close()
            await until(lambda: not server.server_state.connections)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post_bytes({"messages": [{"role": "user", "content": "hi"}]}))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(scenario())
