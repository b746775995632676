"""Log probabilities of /generate: what is asked of the engine, and the lists in `meta_info`."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import Abort, Length, LogprobParams, Logprobs, RowDetails
from tests.support.asgi import post, run
from tests.support.engine import TOKENIZER, Entry


def told(*values: float, top: int = 0, asked: int = 0) -> Logprobs:
    """Log probabilities of consecutive tokens; alternatives are a little less likely than they."""
    return Logprobs(
        list(values),
        [[60 + rank for rank in range(top)] for _ in values],
        [[value - rank for rank in range(top)] for value in values],
        [[value - 10 * (place + 1) for place in range(asked)] for value in values],
    )


async def ask(body: dict[str, Any], *, top: int = 0, asked: int = 0) -> tuple[Entry, Any]:
    """The answer where two tokens, 40 and 41, come in two rows, the first with what is told of the prompt."""
    entry = Entry()

    def answer(sent: Any) -> None:
        params = sent.logprobs or LogprobParams()
        start = params.prompt_start
        prompt = None
        if start is not None:
            positions = range(max(1, start), len(sent.input_ids))
            prompt = told(*(-float(position) for position in positions), top=params.top, asked=len(params.token_ids))
        entry.engine.accept(sent.rid)
        for number, value in enumerate((-0.5, -1.5)):
            values = told(value, top=params.top, asked=len(params.token_ids))
            details = None if sent.logprobs is None else RowDetails(values, prompt if number == 0 else None)
            entry.engine.row(sent.rid, "x", finish=Length(2) if number else None, details=details)

    entry.engine.answer = answer
    return entry, (await post(entry.app, "/generate", body)).body


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, LogprobParams()),
        ({"logprob_start_len": 0}, LogprobParams(prompt_start=0)),
        ({"logprob_start_len": 3, "top_logprobs_num": 2}, LogprobParams(prompt_start=3, top=2)),
        ({"token_ids_logprob": [7, 5]}, LogprobParams(token_ids=(7, 5))),
        ({"return_text_in_logprobs": True}, LogprobParams()),
    ],
)
def test_the_engine_is_asked_for_what_the_client_asked_for(fields: dict[str, Any], params: LogprobParams) -> None:
    async def scenario() -> None:
        entry, _ = await ask({"input_ids": [5, 6, 7], "return_logprob": True, **fields})
        assert [sent.logprobs for sent in entry.engine.requests] == [params]

    run(scenario())


def test_without_the_wish_there_are_none() -> None:
    async def scenario() -> None:
        entry, answer = await ask({"input_ids": [5, 6, 7], "top_logprobs_num": 0, "return_text_in_logprobs": True})
        assert entry.engine.requests[0].logprobs is None
        assert not [name for name in answer["meta_info"] if "logprob" in name]

    run(scenario())


def test_every_position_of_the_answer_has_its_value_and_alternatives() -> None:
    async def scenario() -> None:
        body = {"input_ids": [5, 6, 7], "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [9, 8]}
        meta = (await ask(body))[1]["meta_info"]
        assert meta["output_token_logprobs"] == [[-0.5, 40, None], [-1.5, 41, None]]
        assert meta["output_token_logprobs_length"] == 2
        assert meta["output_top_logprobs"] == [
            [[-0.5, 60, None], [-1.5, 61, None]],
            [[-1.5, 60, None], [-2.5, 61, None]],
        ]
        assert meta["output_token_ids_logprobs"] == [
            [[-10.5, 9, None], [-20.5, 8, None]],
            [[-11.5, 9, None], [-21.5, 8, None]],
        ]
        assert meta["input_token_logprobs"] == meta["input_top_logprobs"] == meta["input_token_ids_logprobs"] == []

    run(scenario())


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]),
        (1, [[-1.0, 6, None], [-2.0, 7, None]]),
        (2, [[-2.0, 7, None]]),
        (3, []),
    ],
)
def test_the_prompt_is_told_from_its_start_len_on_and_its_first_token_has_no_value(start: int, expected: Any) -> None:
    async def scenario() -> None:
        body = {"input_ids": [5, 6, 7], "return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 1}
        meta = (await ask(body))[1]["meta_info"]
        assert meta["input_token_logprobs"] == expected
        assert meta["input_top_logprobs"] == [None if each[0] is None else [[each[0], 60, None]] for each in expected]
        assert "input_token_ids_logprobs" not in meta

    run(scenario())


def test_ids_come_with_their_text_where_it_is_asked_for() -> None:
    async def scenario() -> None:
        body = {
            "text": "hi", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1,
            "return_text_in_logprobs": True,
        }  # fmt: skip
        meta = (await ask(body))[1]["meta_info"]
        for name in ("input_token_logprobs", "output_token_logprobs"):
            assert [text for _, _, text in meta[name]] == [TOKENIZER.decode([each[1]]) for each in meta[name]]
        assert meta["output_top_logprobs"][0][0][2] == TOKENIZER.decode([60])

    run(scenario())


def test_each_prompt_of_a_batch_is_told_what_it_asked_for() -> None:
    async def scenario() -> None:
        body = {
            "input_ids": [[5, 6], [7, 8], [9, 10]],
            "return_logprob": [True, False, True],
            "logprob_start_len": [0, -1, 1],
            "top_logprobs_num": [1, 0, 0],
            "token_ids_logprob": [None, [], [3]],
            "sampling_params": {"n": 2},
        }
        entry, answers = await ask(body)
        assert [sent.logprobs for sent in entry.engine.requests[::2]] == [
            LogprobParams(prompt_start=0, top=1),
            None,
            LogprobParams(prompt_start=1, token_ids=(3,)),
        ]
        shown = [sorted(name for name in answer["meta_info"] if name.endswith("_logprobs")) for answer in answers]
        token = ["input_token_logprobs", "output_token_logprobs"]
        assert shown[0] == shown[1] == sorted([*token, "input_top_logprobs", "output_top_logprobs"])
        assert shown[2] == shown[3] == []
        assert shown[4] == shown[5] == sorted([*token, "input_token_ids_logprobs", "output_token_ids_logprobs"])
        assert answers[5]["meta_info"]["input_token_logprobs"] == [[-1.0, 10, None]]

    run(scenario())


@pytest.mark.parametrize("ids", [[5], [5, 6]])
def test_a_prompt_alone_is_told_though_nothing_is_made(ids: list[int]) -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(sent: Any) -> None:
            assert sent.max_new_tokens == 0
            entry.engine.accept(sent.rid)
            details = RowDetails(None, told(-1.0)) if len(ids) > 1 else None
            entry.engine.row(sent.rid, "", finish=Length(0), ids=[], details=details)

        entry.engine.answer = answer
        body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
        plain = (await post(entry.app, "/generate", body)).body
        (streamed,) = (await post(entry.app, "/generate", {**body, "stream": True})).chunks
        for meta in (plain["meta_info"], streamed["meta_info"]):
            assert meta["input_token_logprobs"] == [[None, 5, None], [-1.0, 6, None]][: len(ids)]
            assert (meta["output_token_logprobs"], meta["completion_tokens"]) == ([], 0)
            assert meta["finish_reason"] == {"type": "length", "length": 0}

    run(scenario())


def test_a_prompt_alone_may_fill_the_context() -> None:
    async def scenario() -> None:
        entry = Entry(context_length=8)
        entry.engine.answer = entry.engine.say("", finish=Length(0))
        for count, max_new, status in ((8, 0, 200), (9, 0, 400), (8, 1, 400), (7, 1, 200)):
            body = {"input_ids": [[5] * count], "sampling_params": {"max_new_tokens": max_new}}
            assert (await post(entry.app, "/generate", body)).status == status

    run(scenario())


def test_a_request_aborted_before_its_first_token_has_empty_lists() -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(sent: Any) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.row(sent.rid, "", finish=Abort("aborted", "The request was aborted."), ids=[])

        entry.engine.answer = answer
        body = {"input_ids": [5, 6], "return_logprob": True, "logprob_start_len": 0}
        meta = (await post(entry.app, "/generate", body)).body["meta_info"]
        assert meta["finish_reason"] == {"type": "abort", "message": "The request was aborted."}
        assert meta["input_token_logprobs"] == meta["output_token_logprobs"] == []

    run(scenario())
