"""POST /v1/responses: what comes out, whole and streamed, and what becomes of it when it does not end well."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response as OpenAIResponse

from millstream.messages import Length, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run, until
from tests.support.engine import NAMES, Entry, hold
from tests.support.short_way import ShortWay
from tests.unit.entry.openai.responses.harness import PATH, ask, checked, events_of, joined, made, prompt_of, send, text_of

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def test_a_whole_response_has_the_shape_of_openai() -> None:
    async def scenario() -> None:
        entry = Entry()
        given = {
            "model": NAMES[1], "instructions": "Be brief.", "max_output_tokens": 5, "metadata": {"a": "b"}, "user": "u",
            "safety_identifier": "s", "prompt_cache_key": "k", "temperature": 0.5, "top_p": 0.75, "max_tool_calls": 3,
            "parallel_tool_calls": False, "tool_choice": "none", "truncation": "disabled", "prompt_cache_retention": "24h",
        }  # fmt: skip
        body = await made(entry, given, "Hel", "lo")
        assert {name: body[name] for name in given} == given
        assert body["id"].startswith("resp_")
        assert (body["object"], body["status"], body["service_tier"]) == ("response", "completed", "default")
        assert body["completed_at"] >= body["created_at"]
        assert (body["error"], body["incomplete_details"]) == (None, None)
        (item,) = body["output"]
        assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
        assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
        prompt = len(prompt_of(entry))
        assert body["usage"] == {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 2,
        }
        assert OpenAIResponse.model_validate(body).output_text == "Hello"

    run(scenario())


def test_what_reaches_the_limit_is_incomplete() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say("Hel", "lo", finish=Length(2))
        body = checked((await ask(entry, {"max_output_tokens": 2})).body)
        assert (body["status"], body["completed_at"]) == ("incomplete", None)
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][0]["status"] == "incomplete"
        assert text_of(body) == "Hello"
        assert entry.engine.requests[-1].sampling.max_new_tokens == 2

    run(scenario())


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("pieces", [("Hel", "", "lo"), ("Hello",), ("",), ("\n", "é\u2028", '"')])
def test_a_stream_has_openais_events_in_their_order_and_one_text(pieces: tuple[str, ...], is_direct: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say(*pieces)
        short = ShortWay()
        call = Call(entry.app, PATH, {"input": "hi", "stream": True}, direct=short if is_direct else None)
        short.call = call
        response = await call.response()
        assert response.headers["content-type"].startswith("text/event-stream")
        events = events_of(response.content)
        names = [event.name for event in events]
        kinds = list(dict.fromkeys(names))
        assert kinds == [kind for kind in [*ORDER, "response.completed"] if "".join(pieces) or not kind.endswith("delta")]
        first, last = events[0].data["response"], checked(events[-1].data["response"])
        assert (first["id"], first["status"], first["output"]) == (last["id"], "in_progress", [])
        assert joined(events) == text_of(last) == "".join(pieces)
        done = {event.name: event.data for event in events}
        assert done["response.output_text.done"]["text"] == "".join(pieces)
        assert done["response.content_part.done"]["part"] == last["output"][0]["content"][0]
        assert done["response.output_item.done"]["item"] == last["output"][0]
        assert {event.data.get("item_id", last["output"][0]["id"]) for event in events} == {last["output"][0]["id"]}
        assert (await send(entry, "GET", last["id"])).body == last

    run(scenario())


def test_a_stream_that_reaches_the_limit_ends_as_incomplete() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say("Hel", "lo", finish=Length(2))
        events = events_of((await ask(entry, {"stream": True})).content)
        assert events[-1].name == "response.incomplete"
        assert events[-2].data["item"]["status"] == "incomplete"
        assert checked(events[-1].data["response"])["incomplete_details"] == {"reason": "max_output_tokens"}

    run(scenario())


def test_rows_for_a_client_that_does_not_read_lose_no_number() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        short = ShortWay()
        call = Call(entry.app, PATH, {"input": "hi", "stream": True, "rid": "r"}, direct=short)
        short.call = call
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        entry.engine.row("r", "a")
        await call.until(b'"delta":"a"')
        for text in "bc":
            entry.engine.row("r", text)
        short.is_open = False
        for text in "de":
            entry.engine.row("r", text)
        short.is_open = True
        entry.engine.row("r", "f", finish=Stop())
        events = events_of((await call.response()).content)
        assert joined(events) == "abcdef" == text_of(events[-1].data["response"])

    run(scenario())


def test_a_failure_in_a_stream_is_a_failed_response_with_the_text_it_had() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": "hi", "stream": True, "rid": "r"})
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        entry.engine.row("r", "Hel")
        await call.until(b"Hel")
        entry.engine.end("r", "engine_error", "It broke.")
        events = events_of((await call.response()).content)
        assert not call.closed
        assert events[-1].name == "response.failed"
        body = checked(events[-1].data["response"])
        assert (body["status"], body["error"]) == ("failed", {"code": "server_error", "message": "It broke."})
        assert text_of(body) == "Hel" == joined(events)
        assert (await send(entry, "GET", body["id"])).body == body

    run(scenario())


@pytest.mark.parametrize(("cause", "status"), [("engine_error", 500), ("deadline", 504)])
def test_a_whole_response_that_fails_is_an_error_with_its_status(cause: str, status: int) -> None:
    async def scenario() -> None:
        entry = Entry()

        def fail(sent: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.end(sent.rid, cause)

        entry.engine.answer = fail
        response = await ask(entry, {})
        assert (response.status, response.error["code"]) == (status, cause)
        assert len(entry.service.responses) == 0

    run(scenario())


def test_a_refusal_by_the_scheduler_is_its_status_also_for_a_stream_and_in_the_background() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.reject(sent.rid)
        for more in ({}, {"stream": True}, {"background": True}):
            assert (await ask(entry, more)).status == 429

    run(scenario())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_aborts_its_response_and_nothing_of_it_is_kept(is_streamed: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": "hi", "stream": is_streamed, "rid": "r"})
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        entry.engine.row("r", "Hel")
        if is_streamed:
            await call.until(b"Hel")
        call.disconnect()
        await call.task
        assert [abort.cause for abort in entry.engine.aborts] == ["client_gone"]
        entry.engine.end("r")
        assert entry.manager.live_requests == 0
        assert (len(entry.service.responses), len(entry.service.responses._live)) == (0, 0)
        assert entry.manager.ledger.totals() == {}

    run(scenario())


def test_the_conversation_of_several_turns_is_the_prompt_of_one_with_all_of_them() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await made(entry, {"input": "My name is Ada.", "instructions": "Forget me."}, "Hello", " Ada.")
        two = await made(entry, {"input": [{"role": "user", "content": "Who?"}], "previous_response_id": one["id"]}, "You.")
        await made(entry, {"input": "Again?", "previous_response_id": two["id"], "instructions": "Be brief."}, "Ada.")
        by_turns = prompt_of(entry)
        spoken = [
            {"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada."},
            {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "You.", "annotations": []}]},
            {"role": "user", "content": "Again?"},
        ]  # fmt: skip
        await made(entry, {"input": spoken, "instructions": "Be brief."})
        assert prompt_of(entry) == by_turns
        await made(entry, {"input": [{"role": "system", "content": "Be brief."}, *spoken]})
        assert prompt_of(entry) == by_turns
        chat: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Hello Ada."}, {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "You."}, {"role": "user", "content": "Again?"},
        ]  # fmt: skip
        assert (await Call(entry.app, "/v1/chat/completions", {"messages": chat}).response()).status == 200
        assert prompt_of(entry) == by_turns

    run(scenario())


def test_the_sampling_fields_of_the_chat_route_reach_the_engine() -> None:
    async def scenario() -> None:
        entry = Entry()
        given = {
            "temperature": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["x"], "min_tokens": 2, "logit_bias": {"5": 1.5},
            "cache_salt": "salt", "rid": "mine", "timeout": 60,
        }  # fmt: skip
        await made(entry, given)
        sent = entry.engine.requests[-1]
        sampling = sent.sampling
        assert (sent.rid, sent.deadline is not None, sent.cache_namespace != "") == ("mine", True, True)
        assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 7, 0.1, 3)
        assert (sampling.stop, sampling.min_new_tokens, sampling.logit_bias) == (("x",), 2, {5: 1.5})

    run(scenario())


def test_a_response_goes_by_its_own_id_where_the_client_gave_no_rid() -> None:
    async def scenario() -> None:
        entry = Entry()
        body = await made(entry)
        assert entry.engine.requests[-1].rid == body["id"]

    run(scenario())


def test_input_tokens_are_counted_as_they_would_be_used() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await made(entry, {"input": "one"})
        fields = {"input": "two", "instructions": "Be brief.", "previous_response_id": one["id"]}
        two = await made(entry, fields)
        num_sent = len(entry.engine.sent)
        counted = await post(entry.app, f"{PATH}/input_tokens", fields)
        assert counted.body == {"object": "response.input_tokens", "input_tokens": two["usage"]["input_tokens"]}
        for body, param in (
            ({}, "input"), ({"input": [5]}, "input[0]"), ({"input": "hi", "tools": [{}]}, "tools[0].type"),
            ({"input": "hi", "n": 1}, "n"), ({"input": "hi", "conversation": "c"}, "conversation"),
            ({"input": "hi", "truncation": "auto"}, "truncation"),
        ):  # fmt: skip
            response = await post(entry.app, f"{PATH}/input_tokens", body)
            assert (response.status, response.error["param"]) == (400, param)
        assert len(entry.engine.sent) == num_sent

    run(scenario())


TOOLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "({{ c.function.name }}{{ c.function.arguments | tojson }}){% endfor %}{% endfor %}{% if tools %}tools{% endif %}"
)


def test_function_items_are_written_as_the_chat_route_writes_them() -> None:
    async def scenario() -> None:
        entry = Entry(templates={"default": TOOLS})
        call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
        output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
        one = await made(entry, {"input": [{"role": "user", "content": "add"}, call, output]}, "two")
        await made(entry, {"input": "thanks", "previous_response_id": one["id"]})
        function = {"name": "add", "arguments": '{"a": 1}'}
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "thanks"},
        ]
        by_items = prompt_of(entry)
        assert (await post(entry.app, "/v1/chat/completions", {"messages": chat})).status == 200
        assert prompt_of(entry) == by_items

    run(scenario())
