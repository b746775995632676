"""What goes wrong with one request, or with one message, touches no other: neighbours say exactly what they would have said."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream.ipc.frames import frame
from tests.support.chat import ask, ask_streamed, assert_serves, script
from tests.support.server import Server, assert_comes_to_rest, server_info

WORDS = [f"word{i} " for i in range(30)]
NEIGHBOURS = 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Path]]:
    """A server, its URL, and the directory of its sockets."""
    directory = tmp_path_factory.mktemp("t")
    with Server("--executor", "scripted", "--script", "inline", directory=directory) as server:
        url = server.wait_ready()
        (sockets,) = directory.iterdir()
        yield server, url, sockets
        assert server.stop() == 0


def assert_neighbours_say_everything(results: list[Any]) -> None:
    assert [result.content for result in results] == ["".join(WORDS)] * NEIGHBOURS
    assert {result.finish_reason for result in results} == {"stop"}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("after", [0, 1, 9])
@pytest.mark.parametrize("kind", ["error", "raise"])
def test_a_request_that_the_executor_fails_on_ends_alone(
    served: tuple[Server, str, Path], kind: str, after: int, stream: bool
) -> None:
    server, url, _ = served
    pages = server_info(url)["pages_free"]
    send: Any = ask_streamed if stream else ask
    bad = {"messages": script(*WORDS, step_ms=2, fault={"kind": kind, "after": after}), "rid": f"bad-{kind}-{after}-{stream}"}
    with ThreadPoolExecutor() as pool:
        good = [pool.submit(send, url, {"messages": script(*WORDS, step_ms=2)}) for _ in range(NEIGHBOURS)]
        result = send(url, bad)
        assert_neighbours_say_everything([each.result() for each in good])
    error = result.events[-1].data["error"] if stream else result.error
    assert result.status == (200 if stream else 500)
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    assert f"request {bad['rid']} api=chat model=scripted cause=engine_error " in server.log()
    assert_comes_to_rest(url, pages)
    assert_serves(url)


@pytest.mark.parametrize("inbox", ["entry-0", "scheduler", "detokenizer"])
def test_garbage_in_an_inbox_is_dropped_and_streams_go_on(served: tuple[Server, str, Path], inbox: str) -> None:
    _, url, sockets = served
    pages = server_info(url)["pages_free"]
    garbage = [b"", b"\xc1", b"\x80\x04.", b"\x91" * 100_000, b"\x81\xa4type\xa9os.system", bytes(range(256)) * 10]
    body = {"messages": script(*WORDS, step_ms=5), "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response, ThreadPoolExecutor() as pool:
        lines = response.iter_lines()
        next(lines)
        good = [pool.submit(ask_streamed, url, {"messages": script(*WORDS)}) for _ in range(NEIGHBOURS)]
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(sockets / f"{inbox}.sock"))
            for data in garbage:
                stranger.sendall(frame(data))
            stranger.sendall(b"\xff" * 100)  # no frame: the stranger is cut off
        assert_neighbours_say_everything([each.result() for each in good])
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert sum("word" in line for line in rest) >= 1
    assert_comes_to_rest(url, pages)
    assert_serves(url)


BOMBS: list[tuple[str, str]] = [
    ("json_schema", json.dumps({"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/d0"})),
    ("json_schema", '{"items":' * 90 + '{"type":"sting"}' + "}" * 90),
    ("ebnf", "start: A\nA: /[ab]*a[ab]{1000}/ & /[ab]*b[ab]{1000}/"),
    ("ebnf", "start: a0\n" + "\n".join(f'a{i}: a{i + 1} "x"' for i in range(9000)) + '\na9000: "y"'),
]


@pytest.mark.parametrize("field, source", BOMBS, ids=range(len(BOMBS)))
def test_a_grammar_that_would_end_a_process_ends_only_its_own_request(
    served: tuple[Server, str, Path], field: str, source: str
) -> None:
    _, url, _ = served
    pages, pids = server_info(url)["pages_free"], process_ids(url)
    with ThreadPoolExecutor() as pool:
        good = [pool.submit(ask_streamed, url, {"messages": script(*WORDS, step_ms=2)}) for _ in range(NEIGHBOURS)]
        result = ask(url, {"messages": script("a"), field: source})
        assert_neighbours_say_everything([each.result() for each in good])
    assert (result.status, result.error["code"]) == (400, "invalid_grammar")
    assert result.error["param"].startswith(field)
    assert process_ids(url) == pids
    assert_comes_to_rest(url, pages)
    assert_serves(url)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_grammar_holds_over_the_wire(served: tuple[Server, str, Path], stream: bool) -> None:
    _, url, _ = served
    send: Any = ask_streamed if stream else ask
    form = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "array", "items": {"enum": ["é", 5]}, "minItems": 4}},
    }
    result = send(url, {"messages": script("[", "5", ",", "5", ",", "5", ",", "5", "]"), "response_format": form})
    assert (result.content, result.finish_reason) == ("[5,5,5,5]", "stop")


def process_ids(url: str) -> dict[str, Any]:
    return {name: each["pid"] for name, each in httpx.get(f"{url}/server_info").json()["processes"].items()}
