"""Failures that people met at the boundary of servers like ours: keys, pages, addresses in prompts, oversized everything."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.support.chat import Result, ask, ask_streamed, assert_serves, script
from tests.support.server import Server, assert_comes_to_rest, server_info

HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KEY, ADMIN_KEY = "sk-user-0123", "sk-admin-4567"


@pytest.fixture
def url(scripted_server: str) -> str:
    return scripted_server


# --- keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with keys, one of them from a file and one from its command line, and its URL."""
    file = tmp_path_factory.mktemp("keys") / "admin"
    file.write_text(ADMIN_KEY + "\n")
    keys = ("--api-key", KEY, "--admin-api-key-file", str(file), "--allowed-origins", "http://page")
    with Server("--executor", "scripted", "--log-level", "debug", *keys) as server:
        yield server, server.wait_ready()
        assert server.stop() == 0
        for text in (server.log(), server.output):
            assert KEY not in text
            assert ADMIN_KEY not in text


def test_a_client_library_needs_the_key_and_knows_the_error(keyed: tuple[Server, str]) -> None:
    _, url = keyed
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        answer = client.chat.completions.create(model="scripted", messages=HI, max_tokens=2)  # type: ignore[arg-type]
        assert answer.choices[0].finish_reason == "length"
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/scripted", "/server_info", CHAT, COMPLETIONS, "/generate", "/abort_request",
             "/tokenize", "/detokenize", "/debug", "/debug/radix", "/v1/requests", "/log_level", "/docs", "/openapi.json",
             "/load_lora_adapter"]
)  # fmt: skip
def test_no_route_answers_without_a_key(keyed: tuple[Server, str], path: str) -> None:
    _, url = keyed
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert httpx.request(method, url + path, json={}).status_code == 401
    for probe in ("/", "/health", "/ready", "/metrics"):
        assert httpx.get(url + probe).status_code == 200


def test_no_host_or_target_makes_a_closed_route_an_open_one(keyed: tuple[Server, str]) -> None:
    _, url = keyed
    body = json.dumps({"messages": HI}).encode()
    targets = [
        CHAT,
        f"http://h/health?x={CHAT}",
        f"{CHAT}?/health",
        f"//health/..{CHAT}",
        f"/health/..{CHAT}",
        f"{CHAT}#/health",
    ]
    for target, host in itertools.product(targets, ["x", "h/health?x=", "h/docs#", "h/metrics;", "h:80/health?"]):
        with connected(url) as connection:
            head = (
                f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            )
            connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
            answer = connection.makefile("rb").readline()
        assert answer.split()[1] in (b"400", b"401", b"404", b"405"), (target, host, answer)


def test_keys_show_neither_in_the_list_of_processes_nor_in_server_info(keyed: tuple[Server, str]) -> None:
    server, url = keyed
    assert httpx.get(f"{url}/server_info", headers={"Authorization": f"Bearer {KEY}"}).status_code == 403
    info = httpx.get(f"{url}/server_info", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
    pids = [server.process.pid, *(process["pid"] for process in info.json()["processes"].values())]
    shown = [info.text, *(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)]
    assert not any(KEY in text or ADMIN_KEY in text for text in shown)


def test_a_page_may_ask_first_without_a_key(keyed: tuple[Server, str]) -> None:
    _, url = keyed
    headers = {
        "Origin": "http://page",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = httpx.options(url + CHAT, headers=headers)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "http://page"
    assert "authorization" in answer.headers["access-control-allow-headers"]


# --- what a body may ask for


@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url", "input_audio", "file"])
def test_addresses_in_messages_are_refused_and_nobody_is_called(url: str, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for address in (
            f"http://127.0.0.1:{port}/",
            f"http://[::1]:{port}/",
            f"http://2130706433:{port}/",
            "file:///etc/passwd",
        ):
            part = {"type": kind, kind: {"url": address}}
            result = ask(url, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]})
            assert result.status == 400, address
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        pytest.param(CHAT, {"chat_template": "{% for i in range(99999999) %}x{% endfor %}"}, id="a template"),
        pytest.param(
            CHAT, {"chat_template_kwargs": {"chat_template": "{{ 'a' * 1000000000 }}"}}, id="a template by the back door"
        ),
        pytest.param(
            CHAT, {"chat_template_kwargs": {"messages": [], "tools": [], "tokenize": True}}, id="names of the template's"
        ),
        pytest.param(CHAT, {"kv_transfer_params": {"tp_size": 1000000000}}, id="internal fields"),
        pytest.param(CHAT, {"bootstrap_host": "x", "bootstrap_port": -1}, id="internal addresses"),
        pytest.param(CHAT, {"custom_logit_processor": "x"}, id="code"),
        pytest.param(CHAT, {"prompt_embeds": "AAAA"}, id="serialised tensors in a chat"),
        pytest.param(COMPLETIONS, {"prompt_embeds": "gASVAAAA"}, id="serialised tensors"),
        pytest.param(CHAT, {"n": 1_000_000}, id="a million choices"),
        pytest.param(COMPLETIONS, {"best_of": 1_000_000}, id="a million candidates"),
        pytest.param(COMPLETIONS, {"prompt": ["a"] * 100_000}, id="too many prompts"),
        pytest.param(COMPLETIONS, {"prompt": ["a"] * 3, "n": 128}, id="too many of both"),
    ],
)
def test_what_no_client_may_ask_for_is_refused_at_once(url: str, path: str, more: dict[str, Any]) -> None:
    body: dict[str, Any] = ({"messages": HI} if path == CHAT else {"prompt": "a"}) | {"max_tokens": 1} | more
    for send in (ask, ask_streamed):
        result = send(url, body, path=path)
        assert (result.status, result.error["type"]) == (400, "invalid_request_error")
    assert_serves(url)


SAMPLING: dict[str, Any] = {
    "frequency_penalty": 1.0, "presence_penalty": -1.0, "repetition_penalty": 1.1, "logit_bias": {"5": -100}, "min_p": 0.1,
    "top_k": 3, "top_p": 0.5, "seed": 7, "n": 2, "min_tokens": 2, "stop": "x", "stop_token_ids": [5], "ignore_eos": True,
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SAMPLING, 2)))
def test_any_two_options_live_together(url: str, one: str, other: str) -> None:
    assert ask(url, {"messages": HI, "max_tokens": 3, one: SAMPLING[one], other: SAMPLING[other]}).status == 200


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("a", 1),
        (["a", "b"], 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        (["a", 1], None),
        ([], None),
        ([[1], "a"], None),
        ([[]], None),
    ],
)
def test_prompts_have_four_forms(url: str, prompt: Any, choices: int | None) -> None:
    result = ask(url, {"prompt": prompt, "max_tokens": 1}, path=COMPLETIONS)
    assert result.status == (400 if choices is None else 200)
    assert choices is None or [choice["index"] for choice in result.body["choices"]] == list(range(choices))


def test_one_prompt_of_a_batch_that_is_too_long_leaves_nothing_of_the_others(url: str) -> None:
    pages = server_info(url)["pages_free"]
    context = server_info(url)["engine"]["context_length"]
    for _ in range(3):
        result = ask(url, {"prompt": [[5], [5] * (context + 1)], "max_tokens": 1, "rid": "batch"}, path=COMPLETIONS)
        assert (result.status, result.error["code"]) == (400, "context_length_exceeded")
    assert_comes_to_rest(url, pages)


# --- a client that sends too much, or leaves


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.create_connection((str(address.hostname), address.port or 80), timeout=30) as connection:
        yield connection


def test_an_endless_header_is_cut_off_and_costs_no_memory(url: str) -> None:
    pid = server_info(url)["processes"]["entry-0"]["pid"]
    before = resident_bytes(pid)
    with connected(url) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ")
        for _ in range(1024):
            connection.sendall(b"a" * 65536)
    assert resident_bytes(pid) - before < 50 * 1024 * 1024
    assert_serves(url)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_rid_used_again_right_after_its_client_left_never_gets_what_was_the_first_s(url: str) -> None:
    pages = server_info(url)["pages_free"]
    for number in range(20):
        first = {"messages": script(*["old "] * 200, step_ms=1), "rid": "again", "stream": True}
        with httpx.stream("POST", url + CHAT, json=first, timeout=30) as response:
            assert response.status_code == 200
            next(response.iter_lines())
        second: Result | None = None
        while second is None or second.status == 409:  # until the first has ended everywhere
            second = ask(url, {"messages": script(f"new {number}"), "rid": "again"})
        assert second.content == f"new {number}"
    assert_comes_to_rest(url, pages)
    assert_serves(url)


def test_prompts_that_share_a_prefix_and_never_ran_pin_nothing(url: str) -> None:
    info = server_info(url)
    shared = [7] * 200
    assert ask(url, {"prompt": [*shared, 8], "max_tokens": 1}, path=COMPLETIONS).status == 200
    statuses = {
        ask(url, {"prompt": [*shared, 9], "max_tokens": 100_000, "timeout": 0.001, "rid": f"p{i}"}, path=COMPLETIONS).status
        for i in range(10)
    }
    assert statuses == {504}
    assert_comes_to_rest(url, info["pages_free"])
