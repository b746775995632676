"""What the server says about itself, and its tokenizer over HTTP."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import pytest

from millstream.messages import EngineInfo
from tests.support.asgi import get, post, run
from tests.support.engine import CONTEXT_LENGTH, NAMES, TOKENIZER, Entry, engine_info, state
from tests.unit.entry.openai.test_chat_tools import HI, WEATHER
from tests.unit.entry.openai.test_chat_tools import entry as offering

CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "sunny"},
]  # fmt: skip
TEXT = "Zoë 🙂 天气"


def test_before_everything_is_loaded_all_but_liveness_of_http_is_503() -> None:
    async def scenario() -> None:
        entry = Entry(ready=False)
        for path in ("/health", "/ready", "/v1/models", "/server_info"):
            response = await get(entry.app, path)
            assert (response.status, response.error["type"]) == (503, "service_unavailable_error")
            assert response.headers["retry-after"] == "5"
        bodies: dict[str, Any] = {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
            "/v1/completions": {"prompt": "x"},
            "/generate": {"text": "x"},
            "/tokenize": {"prompt": "x"},
            "/detokenize": {"tokens": [1]},
        }
        for path, body in bodies.items():
            assert (await post(entry.app, path, body)).status == 503
        assert (await get(entry.app, "/")).status == 200

    run(scenario())


def test_readiness_follows_the_processes_and_liveness_only_waits_for_the_first_start() -> None:
    async def scenario() -> None:
        entry = Entry()
        engine: EngineInfo = engine_info()
        changes: list[tuple[dict[str, str], int]] = [
            ({}, 200),
            ({"detokenizer": "STARTING"}, 503),
            ({"scheduler": "FAILED"}, 503),
            ({"entry-0": "DRAINING"}, 503),
            ({"entry-1": "FAILED"}, 200),  # another worker is no matter of this one
        ]
        for phases, status in changes:
            entry.service.update(state(engine, **phases))
            assert (await get(entry.app, "/health")).status == 200
            assert (await get(entry.app, "/ready")).status == status

    run(scenario())


def test_models_are_listed_and_found_by_any_of_their_names() -> None:
    async def scenario() -> None:
        entry = Entry()
        cards = (await get(entry.app, "/v1/models")).body["data"]
        assert [card["id"] for card in cards] == list(NAMES)
        assert {card["max_model_len"] for card in cards} == {CONTEXT_LENGTH}
        for name in NAMES:
            assert (await get(entry.app, f"/v1/models/{name}")).body["id"] == name
        missing = await get(entry.app, "/v1/models/org/none")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")

    run(scenario())


def test_server_info_asks_all_three_processes() -> None:
    async def scenario() -> None:
        info = (await get(Entry().app, "/server_info")).body
        assert info["live_requests"] == 2
        assert info["live_requests_by_process"] == {"entry": 0, "scheduler": 2, "detokenizer": 1}
        assert (info["pages_total"], info["pages_free"], info["pages_cached"]) == (64, 60, 3)
        assert info["processes"]["scheduler"] == {"pid": 1, "state": "READY"}
        assert info["configuration"]["page_size"] == 16
        assert info["late_rows_dropped"] == 0
        assert (info["text_encoder"], info["stream_mismatch_total"]) == ("tokenizers", 0)
        assert info["text_decoder"] == "byte table"
        assert (info["spec_draft_tokens"], info["spec_accepted_draft_tokens"], info["forced_tokens"]) == (0, 0, 0)

    run(scenario())


def test_the_model_goes_by_sglangs_names_too() -> None:
    async def scenario() -> None:
        entry = Entry()
        info = (await get(entry.app, "/model_info")).body
        assert info == (await get(entry.app, "/get_model_info")).body
        assert info["is_generation"] is True
        facts = {"model_path": "embedded", "tokenizer_path": "embedded", "served_model_name": NAMES[0]}
        for found in (info, (await get(entry.app, "/server_info")).body, (await get(entry.app, "/get_server_info")).body):
            assert facts.items() <= found.items()
        assert (found["retractions"], found["preemptions"], found["max_total_num_tokens"]) == (5, 2, 1024)
        assert (info["weight_version"], info["max_model_len"]) == ("default", CONTEXT_LENGTH)
        assert (await get(Entry(ready=False).app, "/model_info")).status == 503

    run(scenario())


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_detokenize_are_each_others_inverse(prefix: str) -> None:
    async def scenario() -> None:
        app = Entry().app
        answer = (await post(app, f"{prefix}/tokenize", {"prompt": TEXT})).body
        ids = TOKENIZER.encode(TEXT)
        assert answer == {"tokens": ids, "count": len(ids), "max_model_len": CONTEXT_LENGTH}
        assert (await post(app, f"{prefix}/detokenize", {"tokens": ids})).body == {"text": TEXT}
        several = (await post(app, f"{prefix}/tokenize", {"prompt": [TEXT, "b"]})).body
        assert (several["tokens"], several["count"]) == ([ids, TOKENIZER.encode("b")], [len(ids), 1])
        assert (await post(app, f"{prefix}/detokenize", {"tokens": several["tokens"]})).body == {"text": [TEXT, "b"]}

    run(scenario())


def test_messages_are_tokenised_exactly_as_a_chat_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        body = {"messages": [{"role": "user", "content": TEXT}]}
        counted = (await post(entry.app, "/tokenize", body)).body
        chat = (await post(entry.app, "/v1/chat/completions", body)).body
        assert counted["tokens"] == entry.engine.requests[0].input_ids
        assert counted["count"] == chat["usage"]["prompt_tokens"]

    run(scenario())


def test_so_they_are_with_tools_and_without_a_place_for_them_refused() -> None:
    async def scenario() -> None:
        entry = offering()
        for messages in ([{"role": "user", "content": TEXT}], [*HI, *CALLED]):
            body = {"messages": messages, "tools": [WEATHER], "chat_template_kwargs": {"thinking": True}}
            counted = (await post(entry.app, "/tokenize", body)).body
            assert (await post(entry.app, "/v1/chat/completions", body)).status == 200
            assert counted["tokens"] == entry.engine.requests[-1].input_ids
        for server in (Entry(), offering("{% for m in messages %}{{ m.content }}{% endfor %}")):
            response = await post(server.app, "/tokenize", {"messages": HI, "tools": [WEATHER]})
            assert (response.status, response.error["param"]) == (400, "tools")

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [[1], 2]}, "tokens"),
        ("/detokenize", {"tokens": [[1], *[[]] * 1024]}, "tokens"),
        ("/tokenize", {"prompt": ["a"] * 1025}, "prompt"),
        ("/tokenize", {"prompt": ["a" * 1_100_000] * 2}, "prompt"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        response = await post(Entry().app, path, body)
        assert (response.status, response.error["param"]) == (400, param)

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/tokenize", {"prompt": ["a"] * 1000}, "encode"),
        ("/tokenize", {"prompt": ["a" * 1900] * 2}, "encode"),
        ("/detokenize", {"tokens": [[70], *[[]] * 1000]}, "decode"),
    ],
)
def test_many_small_items_are_a_large_job(path: str, body: dict[str, Any], method: str) -> None:
    threads = set()

    def watched(*arguments: Any, **more: Any) -> Any:
        threads.add(threading.current_thread())
        return getattr(type(TOKENIZER), method)(TOKENIZER, *arguments, **more)

    async def scenario() -> None:
        entry = Entry()
        with patch.object(TOKENIZER, method, watched):
            assert (await post(entry.app, path, body)).status == 200

    run(scenario())
    assert threads
    assert threading.main_thread() not in threads


def test_text_beyond_the_context_can_be_counted() -> None:
    async def scenario() -> None:
        answer = (await post(Entry().app, "/tokenize", {"prompt": "word " * 100_000})).body
        assert answer["count"] > CONTEXT_LENGTH

    run(scenario())
