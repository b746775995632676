"""POST /v1/embeddings: every form of input, the numbers and their order, parts of long lists, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai.types import CreateEmbeddingResponse

from millstream.config import ServerConfig
from millstream.entry.openai.embeddings import MAX_INPUTS, pooled
from millstream.messages import (
    Abort,
    AdmissionOutput,
    BatchStrOutput,
    FinishReason,
    Length,
    RowDetails,
    TextRow,
    Timing,
    TokenizedGenerateReqInput,
    Usage,
)
from tests.support.asgi import Call, post, run, until
from tests.support.engine import CONTEXT_LENGTH, HIDDEN_SIZE, TOKENIZER, Entry, FakeEngine, engine_info, hold, state

PATH = "/v1/embeddings"
PAIR: list[Any] = ["one fox", "two foxes"]


def state_of(ids: list[int]) -> NDArray[np.float32]:
    """What the fake engine gives for a prompt."""
    return np.arange(1, HIDDEN_SIZE + 1, dtype=np.float32) * ids[-1] + len(ids)


def finish(engine: FakeEngine, sent: TokenizedGenerateReqInput, end: FinishReason | None = None) -> None:
    """End a request: with its embedding, unless `end` is something else."""
    details = RowDetails(embedding=state_of(sent.input_ids).tobytes()) if end is None else None
    usage = Usage(len(sent.input_ids), 0)
    engine.handle(BatchStrOutput([TextRow(sent.rid, sent.slot, "", [], usage, end or Length(0), Timing(), 0, details)]))


def embedding_entry(config: ServerConfig | None = None, **more: Any) -> Entry:
    entry = Entry(config, **more)
    entry.engine.answer = lambda sent: finish(entry.engine, sent)
    return entry


def vectors(body: dict[str, Any]) -> NDArray[np.float32]:
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    return np.array([item["embedding"] for item in body["data"]], np.float32)


def unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = values.astype(np.float64)
    return (wide / np.sqrt((wide * wide).sum())).astype(np.float32)


@pytest.mark.parametrize(
    "given", ["one fox", PAIR, [5, 6, 7], [[5, 6], [7], [5, 6]]], ids=["text", "texts", "ids", "lists-of-ids"]
)
def test_every_form_of_input_has_its_embedding_at_its_place(given: Any) -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        response = await post(entry.app, PATH, {"input": given, "model": "tiny"})
        CreateEmbeddingResponse.model_validate(response.body, strict=True)
        assert response.body.keys() == {"object", "data", "model", "usage"}
        inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        ids = [TOKENIZER.encode(each) if isinstance(each, str) else each for each in inputs]
        np.testing.assert_array_equal(vectors(response.body), [unit(state_of(each)) for each in ids])
        num_tokens = sum(map(len, ids))
        assert response.body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        assert {(sent.max_new_tokens, sent.wants_embedding) for sent in entry.engine.requests} == {(0, True)}
        assert entry.manager.live_requests == 0

    run(scenario())


def test_base64_is_the_same_numbers_and_dimensions_are_the_first_of_them_at_length_1() -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        for dimensions in (1, 3, HIDDEN_SIZE):
            body = {"input": PAIR, "dimensions": dimensions}
            numbers = vectors((await post(entry.app, PATH, body)).body)
            coded = (await post(entry.app, PATH, {**body, "encoding_format": "base64"})).body["data"]
            decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in coded]
            np.testing.assert_array_equal(numbers, decoded)
            expected = [unit(state_of(TOKENIZER.encode(text))[:dimensions]) for text in PAIR]
            np.testing.assert_array_equal(numbers, expected)

    run(scenario())


def test_a_state_of_zeros_stays_zeros() -> None:
    assert pooled(np.zeros(4, np.float32).tobytes(), 3).tolist() == [0, 0, 0]


def test_an_input_may_fill_the_context() -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        assert (await post(entry.app, PATH, {"input": [5] * CONTEXT_LENGTH})).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[5], []]}, "input[1]"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": ["a", [5]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": [10**30]}, "input"),
        ({"input": [[5], [TOKENIZER.vocab_size]]}, "input[1]"),
        ({"input": [[5], [-1]]}, "input[1]"),
        ({"input": ["a", "b " * CONTEXT_LENGTH]}, "input[1]"),
        ({"input": "b" * (CONTEXT_LENGTH * 256 + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
        ({"input": "a", "dimensions": 10**30}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "model": "other"}, "model"),
        ({"input": "a", "priority": 1}, "priority"),
        ({"input": "a", "timeout": 0}, "timeout"),
        ({"input": "a", "rid": ""}, "rid"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "user": 5}, "user"),
        ({"input": "a", "metadata": "b"}, "metadata"),
    ],
)
def test_what_is_wrong_is_refused_by_name_before_anything_runs(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        response = await post(entry.app, PATH, body)
        assert (response.status, response.error["param"]) == (404 if param == "model" else 400, param)
        assert entry.engine.requests == []
        assert entry.manager.live_requests == 0
        assert (await post(entry.app, PATH, {"input": "a", "user": "somebody"})).status == 200

    run(scenario())


def test_a_model_without_embeddings_says_so() -> None:
    async def scenario() -> None:
        entry = Entry(ready=False)
        entry.service.text_loaded(Entry().service.text)
        info = engine_info()
        entry.service.update(
            state(type(info)(**{name: getattr(info, name) for name in info.__struct_fields__ if name != "hidden_size"}))
        )
        response = await post(entry.app, PATH, {"input": "a"})
        assert (response.status, response.error["code"]) == (400, "unsupported_model")

    run(scenario())


def test_a_long_list_runs_in_parts_of_as_many_as_may_run_and_keeps_its_order() -> None:
    async def scenario() -> None:
        entry = embedding_entry(max_running_requests=3)
        most = 0

        def answer(sent: TokenizedGenerateReqInput) -> None:
            nonlocal most
            most = max(most, entry.manager.live_requests)
            asyncio.get_running_loop().call_soon(finish, entry.engine, sent)

        entry.engine.answer = answer
        inputs = [[5 + number] for number in range(8)]
        response = await post(entry.app, PATH, {"input": inputs, "rid": "call"})
        assert vectors(response.body)[:, 0].tolist() == [unit(state_of(ids))[0] for ids in inputs]
        assert [sent.rid for sent in entry.engine.requests] == [f"call-{number}" for number in range(8)]
        assert most == 3
        assert entry.manager.live_requests == 0

    run(scenario())


def test_once_a_part_was_taken_on_a_full_queue_makes_the_call_wait_and_not_fail() -> None:
    async def scenario() -> None:
        entry = embedding_entry(max_running_requests=1)
        num_refused = 0

        def answer(sent: TokenizedGenerateReqInput) -> None:
            nonlocal num_refused
            if sent.input_ids == [6] and num_refused < 2:
                num_refused += 1
                entry.engine.reject(sent.rid)
                entry.engine.handle(AdmissionOutput(retry_after_s=0))
            else:
                finish(entry.engine, sent)

        entry.engine.answer = answer
        response = await post(entry.app, PATH, {"input": [[5], [6], [7]]})
        assert (response.status, len(response.body["data"]), num_refused) == (200, 3, 2)

        entry.engine.answer = lambda sent: entry.engine.reject(sent.rid)
        response = await post(entry.app, PATH, {"input": [[5], [6]]})
        assert (response.status, response.headers["retry-after"]) == (429, "1")

    run(scenario())


def test_a_client_that_leaves_ends_all_that_runs_and_no_part_follows() -> None:
    async def scenario() -> None:
        entry = embedding_entry(max_running_requests=2)
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": [[5], [6], [7]], "rid": "call"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        entry.engine.accept("call-0", "call-1")
        call.disconnect()
        await call.task
        assert [abort.rid for abort in entry.engine.aborts] == ["call-0", "call-1"]
        for sent in entry.engine.requests:
            finish(entry.engine, sent, Abort("client_gone", "gone", 499))
        await until(lambda: entry.manager.live_requests == 0)
        assert len(entry.engine.requests) == 2

    run(scenario())


@pytest.mark.parametrize(
    ("end", "status"),
    [(Abort("engine_error", "NaN"), 500), (Abort("deadline", "late", 504), 504), (Abort("aborted", "x"), 499)],
)
def test_one_input_that_fails_fails_the_call_and_ends_the_others(end: Abort, status: int) -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        ends: list[Callable[[TokenizedGenerateReqInput], None]] = [
            lambda sent: entry.engine.accept(sent.rid),
            lambda sent: finish(entry.engine, sent, end),
        ]
        entry.engine.answer = lambda sent: ends[sent.input_ids[0] - 5](sent)
        response = await post(entry.app, PATH, {"input": [[5], [6]], "rid": "call"})
        assert (response.status, response.error["code"]) == (status, end.cause)
        assert [abort.rid for abort in entry.engine.aborts] == ["call-0"]

    run(scenario())


def test_a_call_can_be_aborted_by_its_rid_and_keeps_its_namespace_and_deadline() -> None:
    async def scenario() -> None:
        entry = embedding_entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": [[5], [6]], "rid": "call", "cache_salt": "mine", "timeout": 100})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        for sent in entry.engine.requests:
            assert sent.cache_namespace == "4:mine"
            assert sent.deadline is not None
        entry.engine.accept("call-0", "call-1")
        assert (await post(entry.app, "/abort_request", {"rid": "call"})).body["aborted"] == ["call-0", "call-1"]
        for sent in entry.engine.requests:
            finish(entry.engine, sent, Abort("aborted", "The request was aborted."))
        assert (await call.response()).status == 499

    run(scenario())
