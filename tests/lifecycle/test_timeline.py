"""Why a request was slow, found from outside: a timestamp in a system prompt, a client that does not read; and its spans."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.lifecycle.test_slow_reader import open_stream, read_text
from tests.support.server import Server, running_server

pytestmark = pytest.mark.long

DEADLINE_S = 60.0
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
OPTIONS = ("--executor", "scripted", "--max-unsent-bytes", "65536")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(*OPTIONS) as url:
        yield url


def request_of(url: str, name: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The timeline of a request, once it is as `until` wants it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = httpx.get(f"{url}/v1/requests/{name}", timeout=60)
        if answer.status_code == 200 and until(answer.json()):
            found: dict[str, Any] = answer.json()
            return found
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)


def has_ended(request: dict[str, Any]) -> bool:
    return bool(request["state"] == "ended")


def chat(url: str, name: str, system: str, **headers: str) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 4}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"X-Request-Id": name, **headers}, timeout=60)


def test_a_timestamp_in_the_system_prompt_shows_where_the_cache_ended(url: str) -> None:
    rules = "You are the assistant of a library. Answer in one sentence, and say where the book stands. " * 3
    for minute in ("01", "02"):
        assert chat(url, f"at-{minute}", f"{rules} It is 12:{minute} now. {rules}").status_code == 200
    assert request_of(url, "at-01", has_ended)["cache"]["reason"] in ("nothing_cached", "diverged")
    found = request_of(url, "at-02", has_ended)
    cache = found["cache"]
    assert cache["reason"] == "diverged"
    assert 0 < cache["cached_tokens"] <= cache["diverged_at"] < found["prompt_tokens"] - 60
    assert cache["text_after"].lstrip("0").startswith("2 now.")
    assert cache["sibling_text"].lstrip("0").startswith("1 now.")
    assert cache["text_before"].endswith(("It is 12:", "It is 12:0"))
    assert [stage["name"] for stage in found["stages"]][-5:] == ["queue", "prefill", "decode", "detokenize", "write"]
    assert sum(found["ttft"].values()) == pytest.approx(found["ttft_ms"], abs=0.01)


def test_a_client_that_does_not_read_is_what_its_request_waited_for(url: str) -> None:
    connection = open_stream(url, rid="slow")
    live = request_of(url, "slow", lambda request: request["state"] == "paused")
    assert [wait["reason"] for wait in live["waits"]] == ["slow_reader"]
    assert (live["cause"], live["stages"][-1]["is_over"]) == (None, False)
    read_text(connection, "/v1/chat/completions")
    connection.close()
    found = request_of(url, "slow", has_ended)
    assert found["cause"] == "length"
    (wait,) = [wait for wait in found["waits"] if wait["reason"] == "slow_reader"][:1]
    assert wait["duration_ms"] > 0


def test_the_trace_command_shows_the_way_of_one_request(url: str) -> None:
    command = [sys.executable, "-m", "millstream", "trace", "Hello", "--url", url, "--max-tokens", "4"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    for word in ("ChatCompletionRequest", "TokenizedGenerateReqInput", "BatchTokenIDOutput", "BatchStrOutput", "first token"):
        assert word in shown


class Collector:
    """Takes spans over OTLP/HTTP."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                made.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def test_every_worker_sends_its_spans_at_the_latest_when_the_server_stops() -> None:
    with collector() as seen, Server(*OPTIONS, "--entry-workers", "2", "--otlp-endpoint", seen.url) as server:
        url = server.wait_ready()
        parent = f"00-{TRACE_ID}-b7ad6b7169203331-01"
        span_ids = set()
        for number in range(8):  # each over a connection of its own, which any worker may take
            answer = chat(url, f"r{number}", "Be brief.", traceparent=parent)
            assert answer.headers["traceparent"].startswith(f"00-{TRACE_ID}-")
            span_ids.add(answer.headers["traceparent"].split("-")[2])
        for number in range(8):
            request_of(url, f"r{number}", has_ended)
        listed = httpx.get(f"{url}/v1/requests", timeout=60).json()["data"]
        assert {line["request_id"] for line in listed} >= {f"r{number}" for number in range(8)}
        assert server.stop() == 0, server.log()
        roots = [span for span in seen.spans if span.kind == 2]
        assert {root.span_id.hex() for root in roots} == span_ids
        assert {span.trace_id.hex() for span in seen.spans} == {TRACE_ID}
        assert {span.name for span in seen.spans} >= {"queue", "prefill", "detokenize", "write"}
