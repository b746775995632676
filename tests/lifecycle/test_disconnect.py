"""A client that goes away takes its request with it, in every phase, streamed or not: all pages come back."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.server import assert_comes_to_rest, running_server, server_info

HOLD = '<script>{"pieces": ["x"], "delay_ms": 60000}</script>'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A scripted server with room for two running requests."""
    with running_server(
        "--executor", "scripted", "--script", "inline", "--scripted-step-ms", "5", "--max-running-requests", "2"
    ) as url:
        yield url


def open_request(url: str, **body: Any) -> socket.socket:
    """Send a chat request over a raw connection and leave it open."""
    address = urlsplit(url)
    assert address.hostname is not None
    data = json.dumps({"messages": [{"role": "user", "content": "go"}], "max_tokens": 3000, **body}).encode()
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=30)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def wait_for(url: str, **counts: int) -> None:
    """Wait until `/server_info` shows these numbers."""
    for _ in range(2000):
        info = server_info(url)
        if all(info[name] == value for name, value in counts.items()):
            return
    raise AssertionError(f"never saw {counts}; last: {info}")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_a_client_gone_while_decoding(url: str, stream: bool) -> None:
    pages = server_info(url)["pages_free"]
    connection = open_request(url, stream=stream)
    if stream:
        received = b""
        while received.count(b"data: ") < 4:
            received += connection.recv(4096)
    wait_for(url, running=1)
    connection.close()
    assert_comes_to_rest(url, pages)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_a_client_gone_before_its_first_token(url: str, stream: bool) -> None:
    pages = server_info(url)["pages_free"]
    connection = open_request(url, stream=stream, messages=[{"role": "user", "content": HOLD}])
    wait_for(url, running=1)
    connection.close()
    assert_comes_to_rest(url, pages)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_clients_gone_while_waiting_leave_the_others_alone(url: str, stream: bool) -> None:
    pages = server_info(url)["pages_free"]
    holders = [open_request(url, messages=[{"role": "user", "content": HOLD}]) for _ in range(2)]
    wait_for(url, running=2)
    waiting = [open_request(url, stream=stream) for _ in range(5)]
    wait_for(url, running=2, waiting=5)
    for connection in waiting:
        connection.close()
    wait_for(url, running=2, waiting=0, live_requests=2)
    for connection in holders:
        connection.close()
    assert_comes_to_rest(url, pages)


def test_a_client_gone_in_a_long_prefill_of_the_real_model(model_server: str) -> None:
    pages = server_info(model_server)["pages_free"]
    words = " ".join(f"word{i}" for i in range(1200))
    connection = open_request(model_server, stream=True, messages=[{"role": "user", "content": words}], max_tokens=10)
    wait_for(model_server, running=1)
    connection.close()
    assert_comes_to_rest(model_server, pages)


def test_a_request_after_many_disconnects_is_served(url: str) -> None:
    pages = server_info(url)["pages_free"]
    for connection in [open_request(url, stream=True, rid=f"same-{i % 3}") for i in range(9)]:
        connection.close()
    assert_comes_to_rest(url, pages)
    answer = httpx.post(
        f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}, timeout=30
    )
    assert answer.json()["usage"]["completion_tokens"] == 3
