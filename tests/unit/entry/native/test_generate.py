"""POST /generate and /abort_request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.messages import Length, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import Entry


@pytest.mark.parametrize("prompt", [{"text": "hi"}, {"input_ids": [5, 6, 7]}], ids=["text", "ids"])
@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (Stop("END"), {"type": "stop", "matched": "END"}),
        (Stop(3), {"type": "stop", "matched": 3}),
        (Length(2), {"type": "length", "length": 2}),
    ],
    ids=["string", "token", "length"],
)
def test_the_stream_joined_is_the_whole_answer(prompt: dict[str, Any], finish: Any, expected: dict[str, Any]) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say("Hel", "", "lo", finish=finish)
        whole = (await post(entry.app, "/generate", {**prompt, "rid": "r"})).body
        stream = await post(entry.app, "/generate", {**prompt, "rid": "r", "stream": True})
        assert stream.events[-1].data == "[DONE]"
        chunks = stream.chunks
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "Hello"
        assert [i for chunk in chunks for i in chunk["output_ids"]] == [43, 44, 45]
        assert whole["output_ids"] == [40, 41, 42]
        for meta in (whole["meta_info"], chunks[-1]["meta_info"]):
            assert (meta["id"], meta["finish_reason"]) == ("r", expected)
            assert meta["prompt_tokens"] == len(entry.engine.requests[0].input_ids)
            assert meta["cached_tokens"] == 1
            assert meta["e2e_latency"] >= 0
        assert whole["meta_info"]["completion_tokens"] == 3
        assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])

    run(scenario())


def test_sampling_params_have_sglang_names_and_defaults() -> None:
    async def scenario() -> None:
        entry = Entry()
        await post(entry.app, "/generate", {"text": "a", "sampling_params": None})
        await post(
            entry.app,
            "/generate",
            {
                "text": "a",
                "sampling_params": {"max_new_tokens": 9, "min_new_tokens": 2, "sampling_seed": 5, "stop": None, "n": 1},
            },
        )
        first, second = entry.engine.requests
        assert first.max_new_tokens == 128
        assert (second.max_new_tokens, second.sampling.min_new_tokens, second.sampling.seed) == (9, 2, 5)

    run(scenario())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": ["a", "b"]}, "text"),
        ({"input_ids": [[1], [2]]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids[0]"),
        ({"input_ids": [10**30]}, "input_ids"),
        ({"text": "a", "return_logprob": True}, "return_logprob"),
        ({"text": "a", "token_ids_logprob": [-1]}, "token_ids_logprob"),
        ({"text": "a", "sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "sampling_params.regex"),
        ({"text": "a", "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"seed": 1, "sampling_seed": 2}}, "sampling_params.sampling_seed"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, "/generate", body)
        assert (response.status, response.error["param"]) == (400, param)
        assert entry.engine.sent == []

    run(scenario())


@pytest.mark.parametrize(
    ("body", "status"), [({"rid": "nobody"}, 404), ({"rid": ""}, 400), ({}, 400), ({"rid": "batch_"}, 404), ({"rod": "x"}, 400)]
)
def test_an_abort_that_hits_nothing_says_so(body: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, "/generate", {"text": "a", "rid": "batch_1"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        assert (await post(entry.app, "/abort_request", body)).status == status
        assert entry.engine.aborts == []
        entry.engine.say("x")(entry.engine.requests[0])
        assert (await call.response()).status == 200

    run(scenario())


def test_abort_all_aborts_all() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        calls = [Call(entry.app, "/generate", {"text": "a", "rid": f"r{i}"}) for i in range(3)]
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 3)
        response = await post(entry.app, "/abort_request", {"abort_all": True})
        assert response.body == {"aborted": ["r0", "r1", "r2"]}
        for i in range(3):
            entry.engine.end(f"r{i}", "aborted")
        answers = await asyncio.gather(*(call.response() for call in calls))
        assert {answer.body["meta_info"]["finish_reason"]["type"] for answer in answers} == {"abort"}
        assert (await post(entry.app, "/abort_request", {"abort_all": True})).body == {"aborted": []}

    run(scenario())
