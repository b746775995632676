"""POST /abort_request on a real server: the request ends at once in every phase, everything comes back, the others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.chat import ask, assert_serves, script
from tests.support.server import assert_comes_to_rest, running_server, server_info

ENDLESS = {"messages": script("on and on", step_ms=5, finish="length"), "max_tokens": 100_000}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server("--executor", "scripted", "--script", "inline", "--max-running-requests", "2") as url:
        yield url


def abort(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/abort_request", json=body, timeout=30)


def events_of(url: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> Iterator[dict[str, Any]]:
    """The events of a stream as they come, up to its end."""
    with httpx.stream("POST", url + path, json={**body, "stream": True}, timeout=30) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def wait_for(url: str, **counts: int) -> None:
    for _ in range(2000):
        info = server_info(url)
        if all(info[name] == value for name, value in counts.items()):
            return
    raise AssertionError(f"never saw {counts}; last: {info}")


def test_a_decoding_request_ends_and_its_neighbour_goes_on(url: str) -> None:
    pages = server_info(url)["pages_free"]
    one, ten = (events_of(url, {**ENDLESS, "rid": rid}) for rid in ("r1", "r10"))
    for events in (one, ten):
        while not next(events)["choices"][0]["delta"].get("content"):
            pass
    assert abort(url, rid="r1").json() == {"aborted": ["r1"]}
    assert [event for event in one if "error" in event][-1]["error"]["code"] == "aborted"
    assert abort(url, rid="r1").status_code == 404
    for _ in range(5):
        assert "error" not in next(ten)
    assert abort(url, rid=["r1", "r10"]).json() == {"aborted": ["r10"], "not_found": ["r1"]}
    assert [event for event in ten if "error" in event]
    assert_comes_to_rest(url, pages)


def test_waiting_requests_end_by_their_prefix_and_their_rids_are_free_again(url: str) -> None:
    pages = server_info(url)["pages_free"]
    with ThreadPoolExecutor() as pool:
        holders = [pool.submit(ask, url, {**ENDLESS, "rid": f"holder-{i}"}) for i in range(2)]
        wait_for(url, running=2)
        waiting = [pool.submit(ask, url, {**ENDLESS, "rid": f"job-{i}"}) for i in range(3)]
        wait_for(url, running=2, waiting=3)
        assert abort(url, rid="job").status_code == 404
        assert set(abort(url, rid="job", prefix=True).json()["aborted"]) == {"job-0", "job-1", "job-2"}
        assert {each.result().status for each in waiting} == {499}
        wait_for(url, running=2, waiting=0, live_requests=2)
        again = pool.submit(ask, url, {**ENDLESS, "rid": "job-0"})
        wait_for(url, running=2, waiting=1)
        assert len(abort(url, abort_all=True).json()["aborted"]) == 3
        assert {each.result().status for each in (*holders, again)} == {499}
    assert_comes_to_rest(url, pages)
    assert_serves(url)


def test_one_choice_of_several_ends_alone(url: str) -> None:
    pages = server_info(url)["pages_free"]
    body = {"messages": script(*["x"] * 40, step_ms=20), "n": 2, "rid": "call"}
    seen: dict[int, str] = {}
    sent = False
    for event in events_of(url, body):
        (choice,) = event["choices"]
        if choice["delta"].get("content") and not sent:
            sent = abort(url, rid="call-1").json() == {"aborted": ["call-1"]}
        if choice["finish_reason"]:
            seen[choice["index"]] = choice["finish_reason"]
    assert seen == {0: "stop", 1: "abort"}
    assert_comes_to_rest(url, pages)


def test_a_long_prefill_of_the_real_model_ends_in_its_middle(model_server: str) -> None:
    pages = server_info(model_server)["pages_free"]
    words = " ".join(f"word{i}" for i in range(1200))
    with ThreadPoolExecutor() as pool:
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": 10, "rid": "long"}
        answer = pool.submit(ask, model_server, body)
        wait_for(model_server, running=1)
        assert abort(model_server, rid="long").json() == {"aborted": ["long"]}
        assert answer.result().status == 499
    assert_comes_to_rest(model_server, pages)
