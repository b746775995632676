"""The ledger of a running server: what a request holds while it runs, in which process, and one word for how it ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.chat import ask, ask_streamed, script
from tests.support.server import Server, assert_ledger_comes_to_rest, ledger

ENDLESS = script(" word", step_ms=5, finish="length")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    arguments = ("--executor", "scripted", "--script", "inline", "--max-running-requests", "2", "--max-queued-requests", "1")
    with Server(*arguments) as server:
        server.wait_ready()
        yield server
        assert_ledger_comes_to_rest(url_of(server))
        assert server.stop() == 0, server.log()


def url_of(server: Server) -> str:
    return server.wait_ready()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "millstream", *arguments], capture_output=True, text=True, check=False)


def held_by(url: str, rid: str) -> set[tuple[str, str]]:
    found = httpx.get(f"{url}/debug/ledger", params={"rid": rid}).raise_for_status().json()
    assert {each["rid"] for each in found["held"]} <= {rid}
    return {(each["process"], each["kind"]) for each in found["held"]}


def test_a_running_stream_holds_something_in_every_process_and_nothing_when_its_client_has_left(server: Server) -> None:
    url = url_of(server)
    body = {"messages": ENDLESS, "stream": True, "max_tokens": 3000, "rid": "long"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        while "word" not in next(lines):
            pass
        expected = {("entry-0", kind) for kind in ("state", "generation", "reader", "stream")}
        expected |= {("scheduler", "running"), ("scheduler", "pages"), ("detokenizer", "decode_status")}
        assert expected <= held_by(url, "long")
        assert held_by(url, "lon") == set()
        shown = command("ledger", "--url", url, "--rid", "long").stdout
        assert re.search(r"^long +scheduler +pages +\d", shown, re.MULTILINE)
        assert command("doctor", "--url", url).returncode == 0
    assert_ledger_comes_to_rest(url)
    checked = command("doctor", "--url", url, "--json")
    assert (checked.returncode, json.loads(checked.stdout)["ok"]) == (0, True)


def test_a_name_that_is_no_parameter_of_the_ledger_is_refused(server: Server) -> None:
    answer = httpx.get(f"{url_of(server)}/debug/ledger?rdi=x")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "rdi")


def causes_in_log(server: Server, rid: str) -> list[str]:
    return re.findall(rf"request {rid} api=\S+ model=\S+ cause=(\w+)", server.log())


def released(url: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = ledger(url)["released"]
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("cause", "body"),
    [
        pytest.param("stop", {"messages": script("fine")}, id="stop"),
        pytest.param("length", {"messages": script(" word", finish="length"), "max_tokens": 3}, id="length"),
        pytest.param("rejected", {"messages": script("x"), "max_tokens": 10**6}, id="too-long"),
        pytest.param("engine_error", {"messages": script("x", fault={"kind": "error", "after": 0})}, id="engine-error"),
    ],
)
def test_an_end_has_one_word_in_answer_log_and_ledger(server: Server, cause: str, body: dict[str, Any], stream: bool) -> None:
    url, rid = url_of(server), f"{cause}-{stream}"
    before = released(url)
    answer = (ask_streamed if stream else ask)(url, {**body, "rid": rid})
    assert_ledger_comes_to_rest(url)
    assert causes_in_log(server, rid) == [cause]
    after = released(url)
    assert after["state"][cause] == before.get("state", {}).get(cause, 0) + 1
    if cause == "rejected":
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        return
    for kind in ("running", "decode_status"):
        assert after[kind][cause] == before.get(kind, {}).get(cause, 0) + 1
    if cause == "engine_error":
        error = answer.events[-1].data["error"] if answer.events else answer.error
        assert error["code"] == cause
    else:
        assert answer.finish_reason == cause


def test_an_abort_has_one_word_in_answer_log_and_ledger(server: Server) -> None:
    url = url_of(server)
    body = {"messages": ENDLESS, "stream": True, "max_tokens": 3000, "rid": "unwanted"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        while "word" not in next(lines):
            pass
        assert httpx.post(f"{url}/abort_request", json={"rid": "unwanted"}).json() == {"aborted": ["unwanted"]}
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "aborted"
    assert_ledger_comes_to_rest(url)
    assert causes_in_log(server, "unwanted") == ["aborted"]
    counts = released(url)
    assert [counts[kind]["aborted"] for kind in ("state", "running", "decode_status")] == [1, 1, 1]
