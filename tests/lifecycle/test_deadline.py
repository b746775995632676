"""A request whose time is up ends, on a real server: in the queue, in its prefill, between tokens; and says so in the log."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.lifecycle.test_abort import ENDLESS, abort, wait_for
from tests.support.chat import Result, ask, ask_streamed, assert_serves
from tests.support.server import Server, assert_comes_to_rest, server_info


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, str]]:
    """A server and its URL."""
    with Server("--executor", "scripted", "--script", "inline", "--max-running-requests", "1") as server:
        yield server, server.wait_ready()
        assert server.stop() == 0


def assert_timed_out(result: Result, *, stream: bool) -> None:
    error = result.events[-1].data["error"] if stream else result.error
    assert result.status == (200 if stream else 504)
    assert (error["type"], error["code"]) == ("timeout_error", "deadline")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_request_ends_at_its_deadline_while_it_decodes_and_while_it_waits(served: tuple[Server, str], stream: bool) -> None:
    server, url = served
    pages = server_info(url)["pages_free"]
    send: Any = ask_streamed if stream else ask
    assert_timed_out(send(url, {**ENDLESS, "timeout": 0.2, "rid": "decoding"}), stream=stream)
    with ThreadPoolExecutor() as pool:
        holder = pool.submit(ask, url, {**ENDLESS, "rid": "holder"})
        wait_for(url, running=1)
        assert_timed_out(send(url, {**ENDLESS, "timeout": 0.1, "rid": "waiting"}), stream=stream)
        assert server_info(url)["running"] == 1
        abort(url, rid="holder")
        assert holder.result().status == 499
    assert_comes_to_rest(url, pages)
    assert_serves(url)
    for rid in ("decoding", "waiting"):
        assert f"request {rid} api=chat model=scripted cause=deadline " in server.log()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_the_connection_of_a_stream_that_failed_takes_the_next_request(served: tuple[Server, str], path: str) -> None:
    """Its answer was complete, so clients use its connection again: one that we closed then would lose their next request."""
    _, url = served
    body = {**ENDLESS, "stream": True, "timeout": 0.5}
    if path == "/v1/responses":
        body = {"input": ENDLESS["messages"], "max_output_tokens": 100_000, "stream": True, "timeout": 0.5}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        told = connection.getresponse().read()  # an error in place of a stream, where the server was busy for all of that time
        assert b"response.failed" in told or b"deadline" in told
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert connection.sock is first
    connection.close()


def test_a_long_prefill_of_the_real_model_ends_at_its_deadline(model_server: str) -> None:
    pages = server_info(model_server)["pages_free"]
    words = " ".join(f"word{i}" for i in range(1200))
    body = {"messages": [{"role": "user", "content": words}]}
    answer = httpx.post(f"{model_server}/v1/chat/completions", json=body, headers={"X-Request-Timeout": "0.3"}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
    assert_comes_to_rest(model_server, pages)


def test_the_official_client_does_not_ask_again_for_what_timed_out(served: tuple[Server, str]) -> None:
    server, url = served
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(
                model="scripted",
                messages=ENDLESS["messages"],
                extra_body={"timeout": 0.2, "rid": "once"},
            )
        assert caught.value.status_code == 504
    assert server.log().count("request once api=") == 1
