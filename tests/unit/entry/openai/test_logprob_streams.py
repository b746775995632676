"""Streams with log probabilities, however rows wait and merge; and prompts that stand before their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.messages import Length, Logprobs, RowDetails, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run
from tests.support.engine import TOKENIZER, Entry
from tests.support.logprobs import joined_choices, plain_choices
from tests.support.short_way import ShortWay

PATH = "/v1/completions"
N = 2
TEXT = "naïve 😀 zzz café"
IDS = TOKENIZER.encode(TEXT)
READ, STALL, TURN = "read", "stall", "turn"  # what the client and the event loop do between rows


def told(ids: list[int], prompt: int = 0) -> RowDetails:
    table = Logprobs([-i / 100 for i in ids], [[i, 1] for i in ids], [[-i / 100, -9.0] for i in ids], [[] for _ in ids])
    first = Logprobs([-1.0] * prompt, [[2]] * prompt, [[-0.5]] * prompt, [[]] * prompt) if prompt else None
    return RowDetails(table, first)


def pieces() -> list[tuple[str, int]]:
    """Each token with the text that is certain behind it."""
    decoder = TOKENIZER.incremental()
    return [(decoder.push([token_id]), token_id) for token_id in IDS]


class Source:
    """Rows of the choices of a call, one token each."""

    def __init__(self, entry: Entry, echo: bool) -> None:
        self._engine = entry.engine
        self._rows = [iter(pieces()) for _ in range(N)]
        self._told_prompt = [not echo] * N

    def row(self, index: int, finish: Any = None) -> None:
        """The next one; with `finish` the last."""
        text, token_id = next(self._rows[index], ("", None))
        ids = [] if token_id is None else [token_id]
        prompt = 0 if self._told_prompt[index] else len(self._engine.requests[0].input_ids) - 1
        self._told_prompt[index] = True
        self._engine.row(f"r-{index}", text, ids=ids, details=told(ids, prompt) if ids or prompt else None, finish=finish)


class Reader:
    """A client that reads or does not, by either way."""

    def __init__(self, call: Call, short: ShortWay | None) -> None:
        self._call, self._short = call, short
        if short is not None:
            short.call = call

    def does(self, what: str) -> None:
        (self._call.read_on if what == READ else self._call.stop_reading)()
        if self._short is not None:
            self._short.is_open = what == READ


async def answered(steps: list[Any], *, stream: bool, echo: bool, short: ShortWay | None = None) -> dict[int, Any]:
    """The choices of a call whose rows come in `steps`."""
    entry = Entry()
    entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
    body = {"prompt": "x y", "rid": "r", "n": N, "logprobs": 2, "stream": stream, "echo": echo, "return_token_ids": True}
    call = Call(entry.app, PATH, body, direct=short)
    reader, source = Reader(call, short), Source(entry, echo)
    await entry.engine.wait_sent(TokenizedGenerateReqInput, N)
    for step in steps:
        if step == TURN:
            await asyncio.sleep(0)
        elif isinstance(step, int):
            source.row(step)
        elif stream:
            reader.does(step)
    reader.does(READ)
    for index in range(N):
        source.row(index, Length(9))
    response = await call.response()
    return joined_choices(response.chunks) if stream else plain_choices(response.body)


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(0, N - 1) | st.sampled_from([READ, STALL, TURN]), max_size=40),
    has_short_way=st.booleans(),
    echo=st.booleans(),
)
def test_no_entry_is_lost_or_repeated_however_rows_wait(steps: list[Any], has_short_way: bool, echo: bool) -> None:
    async def scenario() -> None:
        streamed = await answered(steps, stream=True, echo=echo, short=ShortWay() if has_short_way else None)
        assert streamed == await answered(steps, stream=False, echo=echo)

    run(scenario())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("née 😀", ["née 😀"]),
        (["a", "b c"], ["a", "b c"]),
        (IDS, [TEXT]),
        ([IDS, TOKENIZER.encode("b")], [TEXT, "b"]),
        ([*TOKENIZER.encode("a"), *TOKENIZER.encode("<|im_start|>b")], ["ab"]),
    ],
    ids=["text", "texts", "ids", "lists-of-ids", "control-tokens"],
)
def test_a_prompt_is_repeated_as_it_came_or_as_its_ids_say(stream: bool, prompt: Any, texts: list[str]) -> None:
    async def scenario() -> None:
        entry = Entry()
        body = {"prompt": prompt, "echo": True, "n": 2, "stream": stream}
        response = await post(entry.app, PATH, body)
        choices = joined_choices(response.chunks) if stream else plain_choices(response.body)
        assert [choices[index]["text"] for index in sorted(choices)] == [text + "Hello" for text in texts for _ in range(2)]
        assert all(choice["logprobs"] is None and choice["finish_reason"] == "stop" for choice in choices.values())

    run(scenario())


def test_an_echoed_prompt_whose_tokens_nobody_wants_is_sent_at_once() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, PATH, {"prompt": "once upon", "echo": True, "stream": True, "rid": "r"})
        await call.until(b"once upon")
        entry.engine.row("r", " a time", finish=Stop())
        chunks = (await call.response()).chunks
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["once upon", " a time", ""]

    run(scenario())


def test_special_tokens_of_an_echoed_list_of_ids_are_shown_where_the_client_wants_them() -> None:
    async def scenario() -> None:
        ids = TOKENIZER.encode("<|im_start|>b")
        body = {"prompt": ids, "echo": True, "skip_special_tokens": False}
        assert (await post(Entry().app, PATH, body)).body["choices"][0]["text"] == "<|im_start|>bHello"

    run(scenario())


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    async def scenario() -> None:
        entry = Entry()

        def answer(sent: Any) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.row(sent.rid, "", ids=[], finish=Length(0))

        entry.engine.answer = answer
        body = {"prompt": [40], "echo": True, "logprobs": 1, "max_tokens": 0, "prompt_logprobs": 1}
        (choice,) = (await post(entry.app, PATH, body)).body["choices"]
        assert choice["logprobs"] == {
            "tokens": [TOKENIZER.decode([40])], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0],
        }  # fmt: skip
        assert choice["prompt_logprobs"] == [None]

    run(scenario())


def test_special_tokens_of_a_text_prompt_are_left_out_where_the_client_wants_that() -> None:
    async def scenario() -> None:
        seen = []

        class Tokenizer:
            vocab_size = TOKENIZER.vocab_size
            decode = staticmethod(TOKENIZER.decode)

            def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
                seen.append(add_special_tokens)
                return TOKENIZER.encode(text)

        entry = Entry(tokenizer=Tokenizer())
        for value in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            assert (await post(entry.app, PATH, {"prompt": "a", **value})).status == 200
        assert seen == [True, True, False]

    run(scenario())
