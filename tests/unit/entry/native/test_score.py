"""POST /v1/score: what is asked of the engine, what is made of its log probabilities, and what is refused."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config import ServerConfig
from millstream.entry.native import score as score_module
from millstream.entry.native.score import softmax
from millstream.messages import BatchStrOutput, Length, TextRow, Timing, TokenizedGenerateReqInput, Usage
from millstream.messages.details import MAX_LOGPROB_TOKEN_IDS, Logprobs, RowDetails
from tests.support.asgi import Call, Response, post, run
from tests.support.engine import CONTEXT_LENGTH, NAMES, TOKENIZER, Entry, hold

PATH = "/v1/score"
BODY: dict[str, Any] = {"query": "Is it good? ", "items": ["yes", "no"], "label_token_ids": [5, 6]}


def scorer(config: ServerConfig | None = None, *, has_logprobs: bool = True) -> Entry:
    """An entry whose engine says that label i has the probability 1 / (number of prompt tokens + i)."""
    entry = Entry(config)
    entry.manager.engine = msgspec.structs.replace(entry.manager.engine, has_logprobs=has_logprobs)

    def answer(request: TokenizedGenerateReqInput) -> None:
        entry.engine.accept(request.rid)
        assert request.logprobs is not None
        asked = [-math.log(len(request.input_ids) + index) for index in range(len(request.logprobs.token_ids))]
        details = RowDetails(logprobs=Logprobs([-1.0], [[]], [[]], [asked]))
        usage = Usage(len(request.input_ids), 1, cached_tokens=1)
        timing = Timing(queued=1.0, admitted=2.0, decoded=3.0)
        row = TextRow(request.rid, request.slot, "x", [40], usage, Length(1), timing, details=details)
        entry.engine.handle(BatchStrOutput([row]))

    entry.engine.answer = answer
    return entry


def ask(body: dict[str, Any], entry: Entry | None = None) -> tuple[Response, Entry]:
    async def scenario() -> tuple[Response, Entry]:
        server = entry or scorer()
        response = await post(server.app, PATH, {**BODY, **body})
        assert server.manager.live_requests == 0
        return response, server

    return run(scenario())


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=True)


def test_each_item_has_the_probability_of_each_label() -> None:
    response, entry = ask({"model": NAMES[1]})
    assert response.status == 200, response.content
    prompts = [encode("Is it good? yes"), encode("Is it good? no")]
    body = response.body
    assert set(body) == {"object", "scores", "model", "usage"}
    assert (body["object"], body["model"]) == ("scoring", NAMES[1])
    assert body["scores"] == [pytest.approx([1 / len(ids), 1 / (len(ids) + 1)]) for ids in prompts]
    count = sum(map(len, prompts))
    assert body["usage"] == {
        "prompt_tokens": count, "completion_tokens": 0, "total_tokens": count, "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip
    assert [request.input_ids for request in entry.engine.requests] == prompts


def test_one_token_is_made_greedily_and_told_about() -> None:
    _, entry = ask({"cache_salt": "x", "rid": "mine"})
    for index, request in enumerate(entry.engine.requests):
        assert request.logprobs is not None
        assert (request.logprobs.token_ids, request.logprobs.top, request.logprobs.prompt_start) == ((5, 6), 0, None)
        assert (request.max_new_tokens, request.sampling.temperature, request.sampling.ignore_eos) == (1, 0.0, True)
        assert (request.cache_namespace, request.rid, request.call) == ("1:x", f"mine-{index}", "mine")


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"query": "a ", "items": "b"}, [encode("a b")]),
        ({"query": "a ", "items": ["b", ""], "item_first": True}, [encode("ba "), encode("a ")]),
        ({"query": [5, 6], "items": [[7], [8, 9], []]}, [[5, 6, 7], [5, 6, 8, 9], [5, 6]]),
        ({"query": [5, 6], "items": [[7]], "item_first": True}, [[7, 5, 6]]),
        ({"query": "", "items": ["b"]}, [encode("b")]),
    ],
)
def test_query_and_item_make_the_prompt(fields: dict[str, Any], prompts: list[list[int]]) -> None:
    response, entry = ask(fields)
    assert len(response.body["scores"]) == len(prompts)
    assert [request.input_ids for request in entry.engine.requests] == prompts


def test_many_numbers_are_written_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(logprobs: list[float]) -> list[float]:
        threads.append(threading.current_thread())
        return softmax(logprobs)

    monkeypatch.setattr(score_module, "softmax", noted)
    assert ask({"items": ["a"] * 3, "label_token_ids": [5] * 1000, "apply_softmax": True})[0].status == 200
    assert len(threads) == 3
    assert threading.main_thread() not in threads


def test_one_item_has_the_rid_of_the_call() -> None:
    _, entry = ask({"items": "yes", "rid": "mine"})
    assert [request.rid for request in entry.engine.requests] == ["mine"]


def test_with_softmax_the_labels_share_one() -> None:
    response, _ = ask({"apply_softmax": True, "label_token_ids": [1, 2, 3], "query": [9], "items": [[9]]})
    (scores,) = response.body["scores"]
    weights = [1 / 2, 1 / 3, 1 / 4]
    assert scores == pytest.approx([weight / sum(weights) for weight in weights])


@given(st.lists(st.floats(max_value=0.0, allow_nan=False), min_size=1, max_size=5))
def test_softmax_is_a_distribution_whatever_it_is_given(logprobs: list[float]) -> None:
    made = softmax(logprobs)
    assert math.fsum(made) == pytest.approx(1.0)
    assert all(0.0 <= each <= 1.0 for each in made)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("query", {"query": None}), ("query", {"query": 5}), ("items", {"items": None}), ("items", {"items": 5}),
        ("items", {"items": []}), ("items[1]", {"items": ["a", 5]}), ("items[0]", {"items": [[5]]}),
        ("items[0]", {"query": [5], "items": ["a"]}), ("items[0]", {"query": [5], "items": "a"}),
        ("items[0]", {"query": [5], "items": [[True]]}), ("items[0]", {"query": [5], "items": [[1.5]]}),
        ("items[0]", {"query": "a", "items": [5, 6]}), ("label_token_ids", {"label_token_ids": None}),
        ("label_token_ids", {"label_token_ids": []}), ("label_token_ids", {"label_token_ids": [-1]}),
        ("label_token_ids", {"label_token_ids": [5, TOKENIZER.vocab_size]}), ("label_token_ids", {"label_token_ids": [10**30]}),
        ("label_token_ids", {"label_token_ids": [5] * (MAX_LOGPROB_TOKEN_IDS + 1)}), ("query", {"query": [-1], "items": [[]]}),
        ("items", {"query": [], "items": [[]]}), ("query", {"query": [TOKENIZER.vocab_size], "items": [[]]}),
        ("temperature", {"temperature": 0.5}), ("stream", {"stream": True}), ("apply_softmax", {"apply_softmax": 1}),
        ("priority", {"priority": 1}), ("timeout", {"timeout": 0}), ("rid", {"rid": ""}), ("lables", {"lables": [5]}),
        ("items", {"query": "word " * 2 * CONTEXT_LENGTH}),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    response, entry = ask(fields)
    assert (response.status, response.error["param"]) == (400, param), response.content
    assert entry.engine.sent == []


def test_more_items_than_the_server_takes_on_are_refused_with_the_limit() -> None:
    config = ServerConfig(max_queued_requests=2)  # and 8 that run
    assert ask({"items": ["a"] * 10}, scorer(config))[0].status == 200
    response, entry = ask({"items": ["a"] * 11}, scorer(config))
    assert (response.status, response.error["param"]) == (400, "items")
    assert "from 1 to 10" in response.error["message"]
    assert entry.engine.sent == []


def test_prompts_that_are_too_long_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_module, "MAX_PROMPT_CHARS", 30)
    assert ask({"query": "a" * 10, "items": ["b" * 5, "c" * 5]})[0].status == 200
    assert ask({"query": "a" * 10, "items": ["b" * 5, "c" * 6]})[0].error["param"] == "items"
    assert ask({"query": [5] * 3, "items": [[5], [5]]})[0].error["param"] == "items"


def test_more_tokens_than_may_wait_are_refused_with_the_limit() -> None:
    config = ServerConfig(max_queued_tokens=20)
    assert ask({"query": [5] * 4, "items": [[5]] * 4}, scorer(config))[0].status == 200
    response, entry = ask({"query": [5] * 4, "items": [[5], [5], [5], [5, 5]]}, scorer(config))
    assert (response.status, response.error["param"]) == (400, "items")
    assert "21 tokens in all; at most 20" in response.error["message"]
    assert entry.engine.sent == []


def test_an_executor_without_log_probabilities_cannot_score() -> None:
    response, entry = ask({}, scorer(has_logprobs=False))
    assert (response.status, response.error["code"]) == (400, "unsupported_parameter")
    assert entry.engine.sent == []


def test_an_unknown_model_is_not_found() -> None:
    response, _ = ask({"model": "other"})
    assert (response.status, response.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("cause", "status"), [("engine_error", 500), ("deadline", 504), ("aborted", 499)])
def test_one_item_that_fails_fails_the_call_and_ends_the_others(cause: str, status: int) -> None:
    async def scenario() -> None:
        entry = scorer()
        entry.engine.answer = lambda request: entry.engine.accept(request.rid)
        call = Call(entry.app, PATH, {**BODY, "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        await asyncio.sleep(0)
        entry.engine.end("r-1", cause)
        response = await call.response()
        assert (response.status, response.error["code"]) == (status, cause)
        assert [abort.rid for abort in entry.engine.aborts] == ["r-0"]

    run(scenario())


def test_a_client_that_leaves_ends_all_its_items() -> None:
    async def scenario() -> None:
        entry = scorer()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {**BODY, "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        call.disconnect()
        await call.task
        assert [(abort.rid, abort.cause) for abort in entry.engine.aborts] == [("r-0", "client_gone"), ("r-1", "client_gone")]

    run(scenario())
