"""Many at once, or one that is huge: whoever stays connected is served, and nobody else waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.lifecycle.test_slow_reader import open_stream, read_text
from tests.support.chat import ask
from tests.support.faults import SCRIPTED, body, expected, status
from tests.support.server import assert_comes_to_rest, running_server, server_info
from tests.support.streams import Stream

NUM_SLOW = 100
HUGE_CHARS = 20_000_000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(*SCRIPTED) as url:
        yield url


def test_clients_that_read_late_are_not_taken_for_clients_that_left(url: str) -> None:
    pages = server_info(url)["pages_free"]
    messages = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 200}
    sleepers = [open_stream(url, **messages) for _ in range(NUM_SLOW)]
    assert ask(url, messages).content == expected(200)  # behind all of them, so most have all their rows by now
    with ThreadPoolExecutor(NUM_SLOW) as pool:
        texts = list(pool.map(lambda connection: read_text(connection, "/v1/chat/completions"), sleepers))
    for connection in sleepers:
        connection.close()
    assert set(texts) == {expected(200)}
    assert_comes_to_rest(url, pages)


def test_while_a_huge_prompt_is_looked_at_others_are_served(url: str) -> None:
    stream = Stream(url, body(100_000))
    stream.wait(lambda s: s.num_content > 2)
    huge = body(1)
    huge["messages"] = [{"role": "user", "content": "so much text " * (HUGE_CHARS // 13)}]
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=huge, timeout=120)
        num_events, num_healthy = stream.num_content, 0
        while not answer.done():
            assert status(url, "/health") == 200
            num_healthy += not answer.done()
        num_events = stream.num_content - num_events
    assert answer.result().json()["error"]["code"] == "context_length_exceeded"
    assert num_healthy > 0
    assert num_events > 0
    stream.leave()
    assert ask(url, body(5)).content == expected(5)
