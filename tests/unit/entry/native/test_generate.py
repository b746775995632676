"""POST /generate: prompts, answers and their numbering; and /abort_request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.messages import Length, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import Entry
from tests.support.native import join

PROMPTS: dict[str, dict[str, Any]] = {
    "text": {"text": "hi"},
    "ids": {"input_ids": [5, 6, 7]},
    "texts": {"text": ["hi", "ho there"]},
    "lists of ids": {"input_ids": [[5, 6, 7], [8]]},
    "a list of one": {"text": ["hi"]},
    "choices": {"text": "hi", "sampling_params": {"n": 3}},
    "texts and choices": {"text": ["hi", "ho there"], "sampling_params": [{"n": 2, "seed": 5}, {"n": 2}]},
}


def is_list(prompt: dict[str, Any]) -> bool:
    return prompt not in (PROMPTS["text"], PROMPTS["ids"])


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (Stop("END"), {"type": "stop", "matched": "END"}),
        (Stop(3), {"type": "stop", "matched": 3}),
        (Length(2), {"type": "length", "length": 2}),
    ],
    ids=["string", "token", "length"],
)
def test_a_stream_says_what_the_whole_answer_says(
    prompt: dict[str, Any], incremental: bool, finish: Any, expected: dict[str, Any]
) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say_one_by_one("Hel", "", 'l"\u2028o', finish=finish)
        body = {**prompt, "rid": "r", "return_prompt_token_ids": True}
        whole = (await post(entry.app, "/generate", body)).body
        num_sent, made = len(entry.engine.requests), [40, 41, 42]
        answers = whole if is_list(prompt) else [whole]
        assert len(answers) == num_sent
        entry.engine.forget()
        stream = await post(entry.app, "/generate", {**body, "stream": True, "incremental_streaming_output": incremental})
        assert stream.events[-1].data == "[DONE]"
        assert all(("index" in chunk) == is_list(prompt) for chunk in stream.chunks)
        for index, (answer, sent) in enumerate(zip(answers, entry.engine.requests, strict=False)):
            events = [chunk for chunk in stream.chunks if chunk.get("index", 0) == index]
            last = join(events) if incremental else events[-1]
            last.pop("index", None)
            for each in (answer, last):
                assert each["meta_info"].pop("e2e_latency") >= 0
            assert last == answer
            assert answer["text"] == 'Hell"\u2028o'
            assert answer["output_ids"] == made
            assert answer["prompt_token_ids"] == sent.input_ids
            assert answer["meta_info"] == {
                "id": sent.rid,
                "finish_reason": expected,
                "prompt_tokens": len(sent.input_ids),
                "completion_tokens": 3,
                "cached_tokens": 1,
                "cached_tokens_details": {"device": 1, "host": 0},
                "num_retractions": 0,
                "weight_version": "default",
            }
            assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 2, 3]
            assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])

    run(scenario())


def test_a_batch_gives_each_prompt_what_is_its_own_and_answers_in_order() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.say(sent.rid)(sent)
        body = {
            "input_ids": [[5], [6]],
            "sampling_params": [
                {"n": 2, "max_new_tokens": 3, "seed": 7},
                {"n": 2, "temperature": 0, "sampling_seed": 2**64 - 1},
            ],
            "rid": ["a", "b"],
            "cache_salt": ["x", "y"],
            "extra_key": "k",
        }
        answers = (await post(entry.app, "/generate", body)).body
        assert [answer["text"] for answer in answers] == ["a_0", "a_1", "b_0", "b_1"]
        sent = entry.engine.requests
        assert [each.input_ids for each in sent] == [[5], [5], [6], [6]]
        assert [each.sampling.seed for each in sent] == [7, 8, 2**64 - 1, 0]
        assert [each.max_new_tokens for each in sent] == [3, 3, 128, 128]
        assert [each.sampling.temperature for each in sent] == [1, 1, 0, 0]
        assert len({each.cache_namespace for each in sent}) == 2
        assert len({each.call for each in sent}) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("body", "rids"),
    [
        ({"text": "a", "rid": "r"}, ["r"]),
        ({"text": ["a"], "rid": "r"}, ["r"]),
        ({"text": ["a"], "rid": ["r"]}, ["r"]),
        ({"text": ["a", "b"], "rid": "r"}, ["r_0", "r_1"]),
        ({"text": ["a", "b"], "rid": ["x", "y"]}, ["x", "y"]),
        ({"text": "a", "rid": "r", "sampling_params": {"n": 2}}, ["r_0", "r_1"]),
    ],
)
def test_rids_are_numbered_through(body: dict[str, Any], rids: list[str]) -> None:
    async def scenario() -> None:
        entry = Entry()
        answer = (await post(entry.app, "/generate", body)).body
        answers = answer if isinstance(answer, list) else [answer]
        assert [each["meta_info"]["id"] for each in answers] == rids == [sent.rid for sent in entry.engine.requests]

    run(scenario())


def test_a_rid_that_is_live_refuses_the_whole_batch_and_harms_nobody() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        first = Call(entry.app, "/generate", {"text": "a", "rid": "y"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        response = await post(entry.app, "/generate", {"text": ["a", "b"], "rid": ["x", "y"]})
        assert (response.status, response.error["code"]) == (409, "duplicate_rid")
        assert len(entry.engine.requests) == 1
        entry.engine.say("x")(entry.engine.requests[0])
        assert (await first.response()).body["text"] == "x"
        assert entry.manager.live_requests == 0

    run(scenario())


def test_a_batch_of_many_texts_lets_others_be_served_while_it_is_encoded() -> None:
    async def scenario() -> None:
        entry = Entry(max_running_requests=64)
        turns = 0
        call = Call(entry.app, "/generate", {"text": [f"{number} " + "word " * 200 for number in range(40)]})
        while not entry.engine.requests:
            await asyncio.sleep(0)
            turns += bool(entry.manager.live_requests)
        assert turns > 15  # 40 kB of text, and at most 2 kB of it at a time
        assert len((await call.response()).body) == 40

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
