"""Log probabilities as JSON, and what the routes ask the scheduler for."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from millstream.entry.openai.listing import Listed
from millstream.entry.openai.logprobs import LEAST, TokenNames, chat_logprobs, completion_logprobs, prompt_logprobs
from millstream.messages import LogprobParams, Logprobs, RowDetails, Stop
from millstream.text.token_bytes import Place
from tests.support.asgi import post, run
from tests.support.engine import Entry
from tests.support.made_tokenizers import bytes_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
PIECES = [b"\xe2", b"\x80", b"\x82", b"\x9c", b" Tim", b"\xff", b""]
NAMES = TokenNames(bytes_tokenizer(PIECES, special=["<|end|>"]).single, skip_special_tokens=True, as_ids=False)
INF = float("-inf")


def listed(token_id: int, logprob: float | None, *others: tuple[int, float], offset: int = 0) -> Listed:
    return Listed(token_id, Place(offset), logprob, [i for i, _ in others], [value for _, value in others])


def test_alternatives_are_written_each_by_itself_and_are_never_empty() -> None:
    content = chat_logprobs([listed(1, -0.5, (1, -0.5), (2, -1.0), (7, -2.0))], NAMES, top=3)["content"]
    assert [(e["token"], e["bytes"]) for e in content[0]["top_logprobs"]] == [
        ("bytes:\\x80", [0x80]), ("bytes:\\x82", [0x82]), ("<|end|>", None),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [INF, math.nan, -1e30])
def test_what_json_cannot_say_is_the_least_number(value: float) -> None:
    tokens = [listed(4, value, (5, value))]
    for told in (
        chat_logprobs(tokens, NAMES, top=1),
        completion_logprobs(tokens, NAMES, top=1),
        prompt_logprobs([listed(4, None), *tokens], NAMES, top=1),
    ):
        text = json.dumps(told, allow_nan=False)
        assert str(LEAST) in text


def test_any_bytes_become_json() -> None:
    tokens = [listed(i, -1.0, (5, -2.0)) for i in range(9)]
    assert json.loads(json.dumps(chat_logprobs(tokens, NAMES, top=1)))["content"][4]["token"] == " Tim"
    assert [e["bytes"] for e in chat_logprobs(tokens, NAMES, top=0)["content"]][4:] == [[*b" Tim"], [255], None, None, None]


def test_the_chosen_token_is_among_the_alternatives_of_a_completion_and_only_there() -> None:
    token = listed(4, -3.0, (0, -0.1), (1, -0.2))
    told = completion_logprobs([token], NAMES, top=2)
    assert told["top_logprobs"] == [{"bytes:\\xe2": -0.1, "bytes:\\x80": -0.2, " Tim": -3.0}]
    assert len(chat_logprobs([token], NAMES, top=2)["content"][0]["top_logprobs"]) == 2
    assert completion_logprobs([token], NAMES, top=0)["top_logprobs"] is None
    assert completion_logprobs([], NAMES, top=2) == {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
    }  # fmt: skip


@pytest.mark.parametrize("tokenizer", [sentencepiece_tokenizer(), wordpiece_tokenizer()], ids=["sentencepiece", "wordpiece"])
def test_every_id_of_other_vocabularies_has_a_name(tokenizer: Any) -> None:
    names = TokenNames(tokenizer.single, skip_special_tokens=True, as_ids=False)
    for token_id in range(-1, tokenizer.vocab_size + 1):
        for at_start in (False, True):
            assert names.text(token_id, at_start=at_start)


def details(*values: float, top: int = 0) -> RowDetails:
    return RowDetails(
        Logprobs(
            list(values), [[7, 8, 9][:top] for _ in values], [[-1.0, -2.0, -3.0][:top] for _ in values], [[] for _ in values]
        )
    )


@pytest.mark.parametrize(
    ("path", "fields", "params"),
    [
        (CHAT, {}, None),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, None),
        (CHAT, {"logprobs": True}, LogprobParams()),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, LogprobParams(top=20)),
        (CHAT, {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 5}, LogprobParams(top=5, prompt_start=0)),
        (COMPLETIONS, {"logprobs": 0}, LogprobParams()),
        (COMPLETIONS, {"logprobs": 5}, LogprobParams(top=5)),
        (COMPLETIONS, {"logprobs": 5, "echo": True}, LogprobParams(top=5, prompt_start=0)),
        (COMPLETIONS, {"echo": True}, None),
        (COMPLETIONS, {"prompt_logprobs": 0}, LogprobParams(prompt_start=0)),
        (COMPLETIONS, {"best_of": 2}, LogprobParams()),
        (COMPLETIONS, {"best_of": 1}, None),
    ],
)
def test_what_is_asked_of_the_scheduler(path: str, fields: dict[str, Any], params: LogprobParams | None) -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(sent: Any) -> None:
            entry.engine.accept(sent.rid)
            told = details(-1.0, top=sent.logprobs.top) if sent.logprobs else None
            if told and sent.logprobs.prompt_start is not None:
                count = len(sent.input_ids) - 1
                told.prompt_logprobs = Logprobs([-1.0] * count, [[]] * count, [[]] * count, [[]] * count)
            entry.engine.row(sent.rid, "I", ids=[40], finish=Stop(), details=told)

        entry.engine.answer = answer
        response = await post(entry.app, path, {"messages": HI} | fields if path == CHAT else {"prompt": "a b"} | fields)
        assert response.status == 200, response.content
        assert {sent.logprobs for sent in entry.engine.requests} == {params}

    run(scenario())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"logprobs": True}),
        (CHAT, {"prompt_logprobs": 0}),
        (COMPLETIONS, {"logprobs": 0}),
        (COMPLETIONS, {"prompt_logprobs": 1}),
        (COMPLETIONS, {"best_of": 2}),
    ],
)
def test_an_executor_without_log_probabilities_refuses_what_needs_them_by_name(path: str, fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        entry = Entry(has_logprobs=False)
        body = {"messages": HI} if path == CHAT else {"prompt": "a"}
        response = await post(entry.app, path, body | fields)
        assert (response.status, response.error["param"]) == (400, next(iter(fields)))
        assert response.error["code"] == "unsupported_parameter"
        assert (await post(entry.app, path, body)).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": "a", "logprobs": 3, "max_tokens": 400}, "choices.0.logprobs.tokens"),
        (
            "/generate",
            {"text": "a", "return_logprob": True, "top_logprobs_num": 3, "sampling_params": {"max_new_tokens": 400}},
            "meta_info.output_top_logprobs",
        ),
        ("/v1/responses", {"input": "a", "top_logprobs": 3, "max_output_tokens": 400}, "output.0.content.0.logprobs"),
    ],
)
def test_a_long_answer_is_written_off_the_event_loop(path: str, body: dict[str, Any], tokens: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        sizes = []
        off_loop = entry.manager.prompts.off_loop

        async def noted(size: int, work: Any, **more: Any) -> Any:
            sizes.append(size)
            return await off_loop(size, work, **more)

        entry.manager.prompts.off_loop = noted  # type: ignore[method-assign]
        values = [-1.0] * 400

        def answer(sent: Any) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.row(sent.rid, "I" * 400, ids=[40] * 400, finish=Stop(), details=details(*values, top=3))

        entry.engine.answer = answer
        found: Any = (await post(entry.app, path, body)).body
        for name in tokens.split("."):
            found = found[int(name) if name.isdigit() else name]
        assert len(found) == 400
        assert sizes[-1] == 400 * 7

    run(scenario())
