"""POST /v1/chat/completions: what comes out, whole and streamed, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from millstream.messages import Length, Stop
from tests.support.asgi import Response, get, post, run
from tests.support.engine import CONTEXT_LENGTH, NAMES, TOKENIZER, Entry
from tests.support.sse import joined_content

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def ask(body: dict[str, Any], *pieces: str, finish: Any = None, entry: Entry | None = None) -> tuple[Response, Entry]:
    async def scenario() -> tuple[Response, Entry]:
        server = entry or Entry()
        if pieces:
            server.engine.answer = server.engine.say(*pieces, finish=finish)
        response = await post(server.app, PATH, {"messages": HI, **body})
        assert server.manager.live_requests == 0
        return response, server

    return run(scenario())


def test_a_whole_answer_has_the_shape_of_openai() -> None:
    response, _ = ask({"model": NAMES[1]}, "Hel", "lo", finish=Stop("END"))
    body = response.body
    answer = ChatCompletion.model_validate(body, strict=True)
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", NAMES[1])
    assert answer.choices[0].message.content == "Hello"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["matched_stop"] == "END"
    prompt = body["usage"]["prompt_tokens"]
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 2,
        "total_tokens": prompt + 2,
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 1},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0, "audio_tokens": 0, "reasoning_tokens": 0, "rejected_prediction_tokens": 0,
        },
    }  # fmt: skip


def test_a_stream_goes_role_text_finish_usage_done() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "rid": "mine"}
    response, entry = ask(body, "Hel", "", "lo", finish=Length(3))
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = response.chunks
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert response.events[-1].data == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for chunk in chunks[1:] for choice in chunk["choices"])
    assert joined_content(response.events) == "Hello"
    assert chunks[-2]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "matched_stop": None,
    }  # fmt: skip
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {("chatcmpl-mine", "chat.completion.chunk", NAMES[0])}
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert entry.engine.requests[0].rid == "mine"


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None, "absent"])
def test_without_being_asked_no_chunk_has_usage_or_no_choices(options: Any) -> None:
    response, _ = ask({"stream": True} | ({} if options == "absent" else {"stream_options": options}))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in response.chunks)


def test_continuous_usage_counts_up() -> None:
    response, _ = ask({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "a")
    counts = [chunk["usage"]["completion_tokens"] for chunk in response.chunks if chunk.get("usage")]
    assert counts == [1, 1]


@given(pieces=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=12))
def test_the_stream_joined_is_the_whole_answer(pieces: list[str]) -> None:
    whole, _ = ask({"return_token_ids": True}, *pieces)
    stream, _ = ask({"return_token_ids": True, "stream": True, "stream_options": {"include_usage": True}}, *pieces)
    assert joined_content(stream.events) == whole.body["choices"][0]["message"]["content"] == "".join(pieces)
    ids = [i for c in stream.chunks for choice in c["choices"] for i in choice.get("token_ids", [])]
    assert ids == whole.body["choices"][0]["token_ids"]
    assert stream.chunks[0]["prompt_token_ids"] == whole.body["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in stream.chunks[1:])
    assert stream.chunks[-1]["usage"] == whole.body["usage"]


def test_several_choices_share_id_and_prompt_and_have_their_own_seed_text_and_finish() -> None:
    async def scenario() -> None:
        for stream in (False, True):
            entry = Entry()

            def answer(sent: Any, entry: Entry = entry) -> None:
                entry.engine.accept(sent.rid)
                entry.engine.row(sent.rid, sent.rid[-1] * 2)
                entry.engine.row(sent.rid, "!", finish=Stop(7) if sent.rid.endswith("1") else Length(2))

            entry.engine.answer = answer
            body = {"messages": HI, "n": 3, "rid": "r", "seed": -1, "stream": stream}
            body |= {"stream_options": {"include_usage": True}} if stream else {}
            response = await post(entry.app, PATH, body)
            assert [(sent.rid, sent.sampling.seed) for sent in entry.engine.requests] == [
                ("r-0", 2**64 - 1), ("r-1", 0), ("r-2", 1),
            ]  # fmt: skip
            prompt = len(entry.engine.requests[0].input_ids)
            if stream:
                chunks = response.chunks
                assert {chunk["id"] for chunk in chunks} == {"chatcmpl-r"}
                texts = [joined_content(response.events, index) for index in range(3)]
                ends = {c["index"]: c["finish_reason"] for k in chunks for c in k["choices"] if c["finish_reason"]}
                roles = [c["index"] for k in chunks for c in k["choices"] if "role" in c["delta"]]
                assert roles == [0, 1, 2]
                usage = chunks[-1]["usage"]
            else:
                choices = response.body["choices"]
                texts = [choice["message"]["content"] for choice in choices]
                ends = {choice["index"]: choice["finish_reason"] for choice in choices}
                assert choices[1]["matched_stop"] == 7
                usage = response.body["usage"]
            assert texts == ["00!", "11!", "22!"]
            assert ends == {0: "length", 1: "stop", 2: "length"}
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, 6)
            assert usage["prompt_tokens_details"]["cached_tokens"] == 1

    run(scenario())


def test_line_breaks_and_separators_stay_inside_one_data_line() -> None:
    text = "line1\n", "line2\r\n", "\u2028end", "\x85\u2029"
    response, _ = ask({"stream": True}, *text)
    assert joined_content(response.events) == "".join(text)


def test_every_sampling_field_reaches_the_engine() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "seed": 9, "ignore_eos": True, "no_stop_trim": True, "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }  # fmt: skip
    more = {"stop": "END", "stop_token_ids": [3], "min_tokens": 2, "max_tokens": 9, "max_completion_tokens": 8}
    _, entry = ask({**fields, **more, "logit_bias": {"5": -100}, "cache_salt": "a", "extra_key": "b"})
    (sent,) = entry.engine.requests
    assert {name: getattr(sent.sampling, name) for name in fields} == fields
    assert (sent.sampling.stop, sent.sampling.stop_token_ids, sent.sampling.logit_bias) == (("END",), (3,), {5: -100.0})
    assert (sent.max_new_tokens, sent.sampling.min_new_tokens) == (8, 2)
    assert sent.cache_namespace not in ("", "a", "b", "ab")


def test_the_prompt_is_the_template_rendered_and_ends_where_it_should() -> None:
    messages = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "The an"}, {"type": "text", "text": "swer"}]}]
    _, entry = ask({"messages": messages, "continue_final_message": True})
    prompt = TOKENIZER.decode(entry.engine.requests[0].input_ids, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nThe answer")
    _, entry = ask({"messages": messages, "add_generation_prompt": False})
    prompt = TOKENIZER.decode(entry.engine.requests[0].input_ids, skip_special_tokens=False)
    assert prompt.endswith("The answer<|im_end|>\n")


def test_null_is_absent_everywhere() -> None:
    names = [
        "model", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "stream_options", "tools",
        "response_format", "user", "logprobs", "rid", "chat_template_kwargs", "no_such_field_at_all",
    ]  # fmt: skip
    response, _ = ask(dict.fromkeys(names), "ok")
    assert response.body["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize(
    "body",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "parallel_tool_calls": False},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False, "modalities": ["text"]},
        {"service_tier": "auto", "reasoning_effort": "none", "stop": [], "priority": 0},
    ],
)
def test_fields_without_effect_and_neutral_values_pass(body: dict[str, Any]) -> None:
    assert ask(body)[0].status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"content": "x"}]),
        ("messages", [{"role": "martian", "content": "x"}]),
        ("messages", [{"role": "user", "content": "x", "colour": "red"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]),
        ("messages", [{"role": "tool", "content": "x", "tool_call_id": "1"}]),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "xml"}),
        ("logprobs", 1),
        ("top_logprobs", 2),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("service_tier", "turbo"),
        ("regex", ["a+"]),
        ("lora_path", "x"),
        ("priority", 5),
        ("chat_template", "x"),
        ("chat_template_kwargs", {"messages": []}),
        ("prompt_embeds", "AAAA"),
        ("temprature", 1),
        ("n", 0),
        ("n", 1_000_000),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", "5"),
        ("temperature", -1),
        ("temperature", 999999.0),
        ("top_p", 1.5),
        ("top_k", -7),
        ("presence_penalty", 9),
        ("repetition_penalty", 0),
        ("logit_bias", {"99999999": 5}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 5}),
        ("logit_bias", {"1": 1000}),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("stop", ""),
        ("stop", ["", "END"]),
        ("stop", ["x"] * 10_000),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [[1]]),
        ("rid", ""),
        ("rid", "x" * 129),
        ("rid", "a\nb"),
        ("stream_options", {"include_usge": True}),
        ("continue_final_message", True),
    ],
)
def test_what_is_wrong_is_a_400_that_names_the_field_and_reaches_no_engine(field: str, value: Any) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await post(entry.app, PATH, {"messages": HI, "max_tokens": 2, field: value})
        assert response.status == 400, response.content
        assert field in (response.error["param"] or "")
        assert response.error["type"] == "invalid_request_error"
        assert entry.engine.sent == []
        assert entry.manager.live_requests == 0
        assert (await post(entry.app, PATH, {"messages": HI})).status == 200

    run(scenario())


def test_a_missing_field_is_named() -> None:
    async def scenario() -> None:
        response = await post(Entry().app, PATH, {"model": NAMES[0]})
        assert (response.status, response.error["param"]) == (400, "messages")

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_is_said_with_limit_and_count_before_any_stream(stream: bool) -> None:
    response, _ = ask({"messages": [{"role": "user", "content": "word " * 600}], "stream": stream})
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
    assert str(CONTEXT_LENGTH) in response.error["message"]
    response, _ = ask({"max_tokens": CONTEXT_LENGTH, "stream": stream})
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
    response, _ = ask({"max_tokens": 10**18, "stream": stream})
    assert response.status == 400


def test_an_unknown_model_is_404_and_no_model_is_the_served_one() -> None:
    response, _ = ask({"model": "gpt-x"})
    assert (response.status, response.error["code"]) == (404, "model_not_found")
    response, _ = ask({"model": ""})
    assert response.body["model"] == NAMES[0]


def test_a_model_without_template_says_what_to_do() -> None:
    async def scenario() -> None:
        from dataclasses import replace

        entry = Entry()
        entry.service.text_loaded(replace(entry.service.text, chat=None))
        response = await post(entry.app, PATH, {"messages": HI})
        assert (response.status, response.error["code"]) == (400, "no_chat_template")
        assert (await post(entry.app, "/v1/completions", {"prompt": "a"})).status == 200
        assert (await get(entry.app, "/health")).status == 200

    run(scenario())


def test_the_number_of_messages_is_checked_before_any_of_them() -> None:
    async def scenario() -> None:
        response = await post(Entry().app, PATH, {"messages": [{"role": "nobody"}] * 10_001})
        assert (response.status, response.error["param"]) == (400, "messages")
        assert "10000" in response.error["message"]

    run(scenario())
