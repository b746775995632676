"""A full detokenizer: the request that finds no room ends with its cause, the others finish, everything comes back."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.chat import ask, ask_streamed, assert_serves, script
from tests.support.server import assert_comes_to_rest, running_server, server_info

LONG = [" word"] * 40


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--executor", "scripted", "--script", "inline", "--max-detokenizer-states", "1") as url:
        yield url


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_only_the_request_that_finds_no_room_ends(url: str, stream: bool) -> None:
    pages = server_info(url)["pages_free"]
    body = {"messages": script(*LONG, step_ms=20), "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as first:
        lines = first.iter_lines()
        while "word" not in next(lines):  # the detokenizer holds its state
            pass
        endless = {"messages": script("never", step_ms=20, finish="length"), "max_tokens": 100_000}
        if stream:
            refused = ask_streamed(url, endless)
            error = refused.events[-1].data["error"]
        else:
            refused = ask(url, endless)
            error = refused.error
            assert refused.status == 503
        assert "max_detokenizer_states is 1" in error["message"]
        assert error["code"] == "engine_error"
        rest = "\n".join(lines)
    assert rest.count(" word") >= 1
    assert rest.rstrip().endswith("data: [DONE]")
    assert_comes_to_rest(url, pages)
    assert server_info(url)["detokenizer_rows_dropped"] >= 1
    assert_serves(url)
