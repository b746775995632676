"""SIGTERM with requests running: nothing new, what runs may end in its time, the rest ends as `drain`, and the status is 0."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.lifecycle.test_abort import ENDLESS
from tests.lifecycle.test_slow_reader import BODIES, open_stream, read_text
from tests.support.chat import ask, script
from tests.support.server import Server, ledger

CHAT = "/v1/chat/completions"


@contextmanager
def draining(*options: str, body: dict[str, Any]) -> Iterator[tuple[Server, str, Iterator[str]]]:
    """A server that was told to stop while the stream of `body` has begun: with its URL and the lines still to come."""
    with Server("--executor", "scripted", "--script", "inline", *options) as server:
        url = server.wait_ready()
        with httpx.stream("POST", url + CHAT, json={**body, "rid": "r", "stream": True}, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            assert "assistant" in next(lines)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready", timeout=30).status_code == 200:  # until the entry has heard of it
                pass
            yield server, url, lines


def test_while_it_drains_nothing_new_is_taken_and_what_runs_ends_by_itself() -> None:
    body = {"messages": script(*["word "] * 30, "end", step_ms=50)}
    new = {CHAT: ENDLESS, "/v1/completions": {"prompt": "x"}, "/generate": {"text": "x", "stream": True}}
    with draining(body=body) as (server, url, lines):
        ready = httpx.get(f"{url}/ready", timeout=30)
        for answer in (ready, *(httpx.post(url + path, json=new[path], timeout=30) for path in new)):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "shutting_down"
            assert int(answer.headers["retry-after"]) >= 1
        rest = list(lines)
        assert '"end"' in "".join(rest)
        assert rest[-1] == "data: [DONE]"
        assert server.wait() == 0
        assert "request r api=chat model=scripted cause=stop " in server.log()


def test_what_has_not_ended_when_the_time_is_up_ends_as_drain() -> None:
    with draining("--drain-timeout-s", "0.5", body=ENDLESS) as (server, _, lines):
        *_, last = lines
        assert '"code":"drain"' in last
        assert "The server is shutting down." in last
        assert server.wait() == 0
        assert "request r api=chat model=scripted cause=drain " in server.log()


def test_a_second_signal_ends_it_at_once() -> None:
    with draining("--drain-timeout-s", "3600", body=ENDLESS) as (server, _, lines):
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
        assert server.wait() == 0
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_has_not_read_all_of_its_answer_is_waited_for(path: str) -> None:
    with Server("--executor", "scripted", "--max-unsent-bytes", str(1 << 30)) as server:
        url = server.wait_ready()
        whole = ask(url, BODIES[CHAT]).content
        with open_stream(url, path) as sleeper:
            while "stream" not in (held := ledger(url)["totals"]) or "state" in held:  # until it has begun and ended
                pass
            assert held["reader"] == 1
            assert held["stream"] > 1 << 16  # bytes of an answer that is complete and not taken
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready", timeout=30).status_code == 200:
                pass
            assert read_text(sleeper, path) == whole
        assert server.wait() == 0
        assert "cause=drain" not in server.log()
