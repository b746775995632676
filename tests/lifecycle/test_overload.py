"""More requests than a server takes on: it serves what it can, and the others get a 429 that says when to come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.lifecycle.test_abort import ENDLESS, abort, wait_for
from tests.support.chat import ask, assert_serves, script
from tests.support.server import assert_comes_to_rest, running_server, server_info

SLOW = {"messages": script(*"abc", step_ms=50)}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ("--max-running-requests", "1", "--max-queued-requests", "2", "--max-live-requests", "200")
    with running_server("--executor", "scripted", "--script", "inline", *options) as url:
        yield url


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_what_fits_is_served_and_the_rest_is_refused_streamed_or_not(url: str) -> None:
    pages = server_info(url)["pages_free"]
    with ThreadPoolExecutor(20) as pool:
        holders = [pool.submit(ask, url, {**ENDLESS, "rid": f"holder-{i}"}) for i in range(3)]
        wait_for(url, running=1, waiting=2)
        bodies = [{**SLOW, "stream": bool(i % 2), "n": 1 + i % 3} for i in range(12)]
        for answer in pool.map(lambda body: httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30), bodies):
            assert_refused(answer)
        info = server_info(url)
        assert (info["live_requests"], info["running"], info["waiting"]) == (3, 1, 2)
        assert abort(url, rid="holder", prefix=True).status_code == 200
        assert {holder.result().status for holder in holders} == {499}
    assert_comes_to_rest(url, pages)
    assert_serves(url)


def test_in_a_burst_every_client_gets_an_answer_and_health_stays_truthful(url: str) -> None:
    pages = server_info(url)["pages_free"]

    def one(number: int) -> int:
        if number % 10 == 0:
            assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        answer = httpx.post(f"{url}/v1/chat/completions", json={**SLOW, "stream": bool(number % 2)}, timeout=60)
        if answer.status_code != 200:
            assert_refused(answer)
        return answer.status_code

    with ThreadPoolExecutor(50) as pool:
        counts = Counter(pool.map(one, range(100)))
    assert set(counts) == {200, 429}
    assert_comes_to_rest(url, pages)
    assert_serves(url)


def test_the_official_client_comes_back_when_there_is_room(url: str) -> None:
    with ThreadPoolExecutor() as pool, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5) as client:
        holders = [pool.submit(ask, url, {**ENDLESS, "rid": f"holder-{i}"}) for i in range(3)]
        wait_for(url, running=1, waiting=2)
        refused: list[httpx.Response] = []

        def note(answer: httpx.Response) -> None:
            if answer.status_code == 429:
                refused.append(answer)
                abort(url, rid="holder", prefix=True)

        client._client.event_hooks = {"response": [note]}
        made = client.chat.completions.create(model="scripted", messages=SLOW["messages"])  # type: ignore[arg-type]
        assert made.choices[0].message.content == "abc"
        assert len(refused) == 1
        assert {holder.result().status for holder in holders} == {499}


def test_queued_prompt_tokens_are_bounded() -> None:
    options = ("--max-running-requests", "1", "--max-queued-tokens", "300")
    with running_server("--executor", "scripted", "--script", "inline", *options) as url:
        with ThreadPoolExecutor() as pool:
            long = {"prompt": [7] * 250, "max_tokens": 2}
            holder = pool.submit(ask, url, {**ENDLESS, "rid": "holder"})
            wait_for(url, running=1)
            queued = pool.submit(ask, url, long, path="/v1/completions")
            wait_for(url, waiting=1)
            assert_refused(httpx.post(f"{url}/v1/completions", json=long, timeout=30))
            small = pool.submit(ask, url, {"prompt": [7] * 20, "max_tokens": 2}, path="/v1/completions")
            wait_for(url, waiting=2)
            abort(url, rid="holder")
            assert [each.result().status for each in (holder, queued, small)] == [499, 200, 200]
        assert_serves(url)
