"""However the rows of an answer come, a stream of /generate says the same as the plain answer: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import FinishReason, Length, Logprobs, RowDetails, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, run
from tests.support.engine import Entry
from tests.support.native import join
from tests.support.short_way import ShortWay

VALUES = st.floats(-50, 0, width=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def rows(draw: st.DrawFn, top: int, asked: int) -> list[tuple[str, list[int], Logprobs]]:
    """What one request makes: text, ids and their log probabilities, a row each."""
    made = []
    for text in draw(st.lists(TEXTS, min_size=1, max_size=6)):
        ids = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=3))
        made.append((text, ids, draw(logprobs(len(ids), top, asked))))
    return made


@st.composite
def logprobs(draw: st.DrawFn, count: int, top: int, asked: int) -> Logprobs:
    def columns(width: int) -> list[list[float]]:
        return [draw(st.lists(VALUES, min_size=width, max_size=width)) for _ in range(count)]

    ids = [draw(st.lists(st.integers(0, 1000), min_size=top, max_size=top)) for _ in range(count)]
    return Logprobs(draw(st.lists(VALUES, min_size=count, max_size=count)), ids, columns(top), columns(asked))


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[tuple[str, list[int], Logprobs]]], Logprobs | None]:
    """A body, what each of its requests makes, and what is told of its prompt of three tokens."""
    num_prompts, n = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    prompts = [[5, 6, 7]] * num_prompts
    body: dict[str, Any] = {
        "input_ids": prompts if num_prompts > 1 else prompts[0],
        "sampling_params": {"n": n},
        "rid": "r",
        "return_prompt_token_ids": draw(st.booleans()),
    }
    top, asked, start = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(-1, 3))
    prompt = None
    if draw(st.booleans()):
        body |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": top}
        body |= {"token_ids_logprob": [3, 4][:asked], "return_text_in_logprobs": draw(st.booleans())}
        if start >= 0:
            prompt = draw(logprobs(3 - max(1, start), top, asked))
    return body, [draw(rows(top, asked)) for _ in range(num_prompts * n)], prompt


async def answer_of(body: dict[str, Any], made: Any, prompt: Logprobs | None, turns: list[int], is_open: list[bool]) -> Any:
    """The answer of an entry to which these rows come, with so many turns of the loop between them."""
    entry = Entry()
    short = ShortWay()
    wants = "return_logprob" in body

    async def feed() -> None:
        await entry.engine.wait_sent(TokenizedGenerateReqInput, len(made))
        entry.engine.accept(*(sent.rid for sent in entry.engine.requests))
        for number in range(max(map(len, made))):
            for index, sent in enumerate(entry.engine.requests):
                if number >= len(made[index]):
                    continue
                text, ids, told = made[index][number]
                details = RowDetails(told.part(0), prompt if number == 0 else None) if wants else None
                is_last = number == len(made[index]) - 1
                finish: FinishReason | None = (Stop("x") if index % 2 else Length(9)) if is_last else None
                short.is_open = is_open[number % len(is_open)]
                entry.engine.row(sent.rid, text, ids=list(ids), finish=finish, details=details)
                for _ in range(turns[number % len(turns)]):
                    await asyncio.sleep(0)

    entry.engine.answer = lambda sent: None
    feeder = asyncio.create_task(feed())
    short.call = call = Call(entry.app, "/generate", body, direct=short)
    response = await call.response()
    await feeder
    assert response.status == 200
    assert entry.service.started is not None
    assert entry.service.started.live_requests == 0
    return response


def settled(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what tells one run from the other."""
    answer.pop("index", None)
    assert answer["meta_info"].pop("e2e_latency") >= 0
    return answer


@given(calls(), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.lists(st.booleans(), min_size=1, max_size=4))
def test_joined_deltas_the_last_event_and_the_plain_answer_are_equal(call: Any, turns: list[int], is_open: list[bool]) -> None:
    body, made, prompt = call

    async def scenario() -> None:
        plain = (await answer_of(body, made, prompt, turns, is_open)).body
        answers = [settled(each) for each in (plain if len(made) > 1 else [plain])]
        for index, answer in enumerate(answers):
            assert answer["text"] == "".join(text for text, _, _ in made[index])
            assert answer["output_ids"] == [token_id for _, ids, _ in made[index] for token_id in ids]
        for incremental in (False, True):
            fields = {**body, "stream": True, "incremental_streaming_output": incremental}
            events = (await answer_of(fields, made, prompt, turns, is_open)).chunks
            for index, answer in enumerate(answers):
                own = [event for event in events if event.get("index", 0) == index]
                assert settled(join(own) if incremental else own[-1]) == answer
                if not incremental:
                    assert all(after["text"].startswith(before["text"]) for before, after in zip(own, own[1:], strict=False))

    run(scenario())
