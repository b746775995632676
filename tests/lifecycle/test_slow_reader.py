"""A client that does not read: its request pauses, others do not notice, and it gets every character when it reads on."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.chat import ask, ask_streamed
from tests.support.server import Server, assert_comes_to_rest, running_server, server_info
from tests.support.sse import parse_events

CHAT = "/v1/chat/completions"
MAX_TOKENS = 12_000  # some megabytes of events, if each token is one
OPTIONS = ("--executor", "scripted", "--max-running-requests", "1", "--max-unsent-bytes", "65536")
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "go"}], "max_tokens": MAX_TOKENS},
    "/generate": {
        "text": "go",
        "sampling_params": {"max_new_tokens": MAX_TOKENS},
        "incremental_streaming_output": True,
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A scripted server with one slot."""
    with running_server(*OPTIONS) as url:
        yield url


def open_stream(url: str, path: str = CHAT, **more: Any) -> socket.socket:
    """Ask for a stream over a connection that takes little, and read nothing."""
    address = urlsplit(url)
    data = json.dumps({**BODIES[path], "stream": True, **more}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((address.hostname, address.port))
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


def read_text(connection: socket.socket, path: str) -> str:
    """The text of the whole stream."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return text_of(response.read(), path)


def text_of(body: bytes, path: str) -> str:
    chunks = [event.data for event in parse_events(body) if event.data != "[DONE]"]
    if path == "/generate":
        return "".join(chunk["text"] for chunk in chunks)
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def unchunked(answer: bytes) -> bytes:
    """The body of a whole answer that was sent in chunks; events have no carriage returns."""
    return b"".join(answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2])


def wait_for(url: str, **counts: int) -> dict[str, Any]:
    """Wait until `/server_info` shows these numbers."""
    deadline = time.monotonic() + 60
    while True:
        info = server_info(url)
        if all(info[name] == value for name, value in counts.items()):
            return info
        assert time.monotonic() < deadline, info


@pytest.mark.parametrize("path", BODIES)
def test_a_sleeping_client_s_request_pauses_others_go_on_and_it_still_gets_the_whole_text(url: str, path: str) -> None:
    pages = server_info(url)["pages_free"]
    whole = ask(url, BODIES[CHAT]).content  # the scripted text is the same for every prompt
    with open_stream(url, path) as sleeper:
        paused = wait_for(url, paused=1, running=0, waiting=0)
        assert paused["pages_free"] < pages
        assert server_info(url)["steps"] == paused["steps"]  # nothing is made
        other = ask_streamed(url, {**BODIES[CHAT], "max_tokens": 400})
        assert (other.finish_reason, other.content) == ("length", whole[: len(other.content)])
        after = server_info(url)
        assert (after["paused"], after["live_requests"], after["retractions"]) == (1, 1, paused["retractions"])
        assert read_text(sleeper, path) == whole
    assert_comes_to_rest(url, pages)


def test_a_sleeping_client_that_leaves_gives_everything_back(url: str) -> None:
    pages = server_info(url)["pages_free"]
    with open_stream(url):
        wait_for(url, paused=1)
    assert_comes_to_rest(url, pages)
    assert server_info(url)["paused"] == 0


def test_a_client_that_never_reads_is_ended_as_a_slow_reader_and_leaves_nothing() -> None:
    with Server(*OPTIONS, "--write-timeout-s", "0.5") as server:
        url = server.wait_ready()
        pages = server_info(url)["pages_free"]
        with open_stream(url, rid="sleeper"):
            wait_for(url, paused=1)
            assert_comes_to_rest(url, pages)
        assert any("sleeper" in line and "slow_reader" in line for line in server.log().splitlines()), server.log()
        assert server.stop() == 0


@pytest.mark.long
def test_a_client_that_reads_slowly_but_steadily_is_not_ended() -> None:
    with running_server(*OPTIONS, "--write-timeout-s", "1") as url:
        whole = ask(url, BODIES[CHAT]).content
        with open_stream(url) as reader:
            wait_for(url, paused=1)
            received = b""
            start = time.monotonic()
            while (elapsed := time.monotonic() - start) < 4:  # four times what a client may take nothing
                if (due := int(elapsed * 128 * 1024) - len(received)) > 0:
                    received += reader.recv(due)
                info = server_info(url)
            assert info["live_requests"] == 1
            while not received.endswith(b"0\r\n\r\n"):
                received += reader.recv(65536)
        assert text_of(unchunked(received), CHAT) == whole


def test_a_stop_of_the_server_ends_a_paused_request() -> None:
    with Server(*OPTIONS, "--drain-timeout-s", "0.2") as server:
        url = server.wait_ready()
        with open_stream(url, rid="sleeper"):
            wait_for(url, paused=1)
            assert server.stop() == 0
        assert any("sleeper" in line and "drain" in line for line in server.log().splitlines()), server.log()
