"""A server that is told to stop while its engine hangs: every client gets an end it can read, every request its one line."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.server import Server

HANG = '<script>{"pieces": ["a", "b"], "fault": {"kind": "hang", "after": 1, "seconds": 15}}</script>'


def open_request(url: str, **body: Any) -> socket.socket:
    data = json.dumps({"prompt": HANG, "max_tokens": 5, **body}).encode()
    connection = socket.create_connection((str(urlsplit(url).hostname), urlsplit(url).port or 80), timeout=30)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: "
        + f"{len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def rest_of(connection: socket.socket) -> bytes:
    data = b""
    with connection:
        while part := connection.recv(65536):
            data += part
    return data


def is_live(url: str, rid: str) -> bool:
    """Whether the entry knows `rid`; the engine, which hangs, is not asked."""
    body = {"prompt": "x", "rid": rid, "stop_token_ids": [10_000_000]}  # refused in any case, for the rid first
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 409


@pytest.mark.long
def test_clients_of_an_engine_that_hangs_at_the_end_get_an_error(tmp_path: Path) -> None:
    arguments = ("--executor", "scripted", "--script", "inline", "--drain-timeout-s", "0.2")
    with Server(*arguments, directory=tmp_path) as server:
        url = server.wait_ready()
        half_sent = socket.create_connection((str(urlsplit(url).hostname), urlsplit(url).port or 80), timeout=30)
        half_sent.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        streamed = open_request(url, stream=True, rid="streamed")
        start = b""
        while b'"text"' not in start:
            start += streamed.recv(4096)
        plain = open_request(url, rid="plain")
        while not is_live(url, "plain"):
            pass
        server.process.send_signal(signal.SIGTERM)
        answer, events, refused = rest_of(plain), rest_of(streamed), rest_of(half_sent)
        server.wait()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "drain"
        assert b'data: {"error"' in events
        assert b'"drain"' in events
        assert b"[DONE]" not in events
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in server.log()
        for rid in ("streamed", "plain"):
            assert server.log().count(f"request {rid} api=") == 1, server.log()
        assert list(tmp_path.iterdir()) == []
