"""GET /v1/requests: live and recent requests, of one's own key, from every worker."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.config import ServerConfig
from millstream.entry import records
from millstream.messages import (
    Journey,
    LiveRequest,
    RequestsReq,
    Stop,
    Timing,
    TokenizedGenerateReqInput,
    Usage,
)
from millstream.messages.journey import Divergence, Wait
from tests.support.asgi import Call, Response, get, post, run, until
from tests.support.engine import TOKENIZER, Entry, hold
from tests.unit.entry.test_survey import workers

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


async def look(entry: Entry, path: str, key: str | None = None) -> Response:
    return await Call(
        entry.app, path, b"", method="GET", headers={} if key is None else {"authorization": f"Bearer {key}"}
    ).response()


def test_an_ended_request_is_found_by_its_rid_and_by_its_request_id() -> None:
    async def scenario() -> None:
        entry = Entry()
        answer = await post(entry.app, "/v1/chat/completions", CHAT, headers={"x-request-id": "mine"})
        (line,) = (await get(entry.app, "/v1/requests")).body["data"]
        assert "chatcmpl-" + line["rid"] == answer.body["id"]
        assert (line["state"], line["cause"], line["api"], line["model"]) == ("ended", "stop", "chat", "tiny")
        assert (line["completion_tokens"], line["cached_tokens"]) == (2, 1)
        assert line["trace_id"] == answer.headers["traceparent"].split("-")[1]
        for name in (line["rid"], answer.body["id"], "mine"):
            found = (await get(entry.app, f"/v1/requests/{name}")).body
            assert found["object"] == "request"
            assert found["rid"] == line["rid"]
            assert [stage["name"] for stage in found["stages"]][:2] == ["template", "tokenize"]
        assert not entry.manager.endings.unread

    run(scenario())


def test_live_requests_come_first() -> None:
    async def scenario() -> None:
        entry = Entry()
        await post(entry.app, "/v1/chat/completions", CHAT)
        entry.engine.answer = hold
        call = Call(entry.app, "/v1/chat/completions", CHAT | {"stream": True})
        await until(lambda: len(entry.engine.requests) == 2)
        live, ended = (await get(entry.app, "/v1/requests")).body["data"]
        assert (live["state"], live["cause"], ended["state"]) == ("queued", None, "ended")
        call.disconnect()
        await call.task
        entry.engine.end(live["rid"])
        first, _ = (await get(entry.app, "/v1/requests")).body["data"]
        assert (first["rid"], first["cause"]) == (live["rid"], "client_gone")

    run(scenario())


def test_an_answer_that_its_client_does_not_take_is_still_being_written() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, "/v1/chat/completions", CHAT | {"stream": True})
        await until(lambda: len(entry.engine.requests) == 1)
        rid = entry.engine.requests[0].rid
        entry.engine.accept(rid)
        await call.until(b"assistant")
        call.stop_reading()
        entry.engine.say("Hello", "you")(entry.engine.requests[0])
        (line,) = (await get(entry.app, "/v1/requests")).body["data"]
        assert (line["state"], line["cause"]) == ("writing", "stop")
        call.read_on()
        await call.response()
        (line,) = (await get(entry.app, "/v1/requests")).body["data"]
        assert line["state"] == "ended"

    run(scenario())


def test_a_client_sees_the_requests_of_its_own_key_and_an_admin_sees_all() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("a", "b"), admin_api_key=("boss",)))
        await post(entry.app, "/v1/chat/completions", CHAT, headers={"authorization": "Bearer a", "x-request-id": "of-a"})
        assert len((await look(entry, "/v1/requests", "a")).body["data"]) == 1
        assert (await look(entry, "/v1/requests", "b")).body["data"] == []
        assert len((await look(entry, "/v1/requests", "boss")).body["data"]) == 1
        assert (await look(entry, "/v1/requests/of-a", "boss")).status == 200
        refused = await look(entry, "/v1/requests/of-a", "b")
        assert (refused.status, refused.error["code"], refused.error["param"]) == (404, "request_not_found", "rid")
        assert (await look(entry, "/v1/requests")).status == 401

    run(scenario())


def test_what_stands_where_a_prompt_diverged_is_shown_to_admins_and_not_to_other_clients() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("a",), admin_api_key=("boss",)))
        ids = {text: TOKENIZER.encode(text, add_special_tokens=False) for text in ("It is ", "12:01", "12:00")}
        cache = Divergence("diverged", 7, ids["It is "], ids["12:01"], ids["12:00"])

        def answer(sent: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.row(sent.rid, "Hi", finish=Stop(), journey=Journey(cache=cache))

        entry.engine.answer = answer
        await post(entry.app, "/v1/chat/completions", CHAT, headers={"authorization": "Bearer a", "x-request-id": "r"})
        expected = {
            "cached_tokens": 1,
            "reason": "diverged",
            "diverged_at": 7,
            "text_before": "It is ",
            "text_after": "12:01",
            "sibling_text": None,
        }
        assert (await look(entry, "/v1/requests/r", "a")).body["cache"] == expected
        assert (await look(entry, "/v1/requests/r", "boss")).body["cache"] == expected | {"sibling_text": "12:00"}

    run(scenario())


def test_live_requests_are_as_the_scheduler_sees_them() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, "/v1/chat/completions", CHAT | {"stream": True})
        await until(lambda: len(entry.engine.requests) == 1)
        rid = entry.engine.requests[0].rid
        journey = Journey([Wait("paused", 1.0, 2.0, "paused", 1.0)])
        timing = Timing(queued=1.0, admitted=2.0, journey=msgspec.msgpack.encode(journey))
        entry.engine.live = [LiveRequest(rid, "paused", timing, Usage(9, 5, 3))]
        (line,) = (await get(entry.app, "/v1/requests")).body["data"]
        assert (line["state"], line["completion_tokens"], line["cached_tokens"]) == ("paused", 5, 3)
        found = (await get(entry.app, f"/v1/requests/{rid}")).body
        assert [wait["reason"] for wait in found["waits"]] == ["slow_reader"]
        assert found["stages"][0]["duration_ms"] >= 0
        call.disconnect()
        await call.task
        entry.engine.end(rid)

    run(scenario())


def test_a_probe_leaves_no_record_and_nothing_is_kept_where_none_is_asked_for() -> None:
    async def scenario() -> None:
        entry = Entry()
        await get(entry.app, "/health_generate")
        assert (await get(entry.app, "/v1/requests")).body["data"] == []
        entry = Entry(ServerConfig(max_recent_requests=0))
        await post(entry.app, "/v1/chat/completions", CHAT)
        assert (await get(entry.app, "/v1/requests")).body["data"] == []

    run(scenario())


def test_any_worker_knows_the_requests_of_all() -> None:
    async def scenario() -> None:
        here, there, ways = workers()

        def deliver(message: Any) -> None:
            if isinstance(message, RequestsReq):
                records.answer_worker(there.service, message)
            else:
                there.manager.handle(message)

        ways.deliver[3] = deliver
        here.engine.answer = here.engine.say("a")
        there.engine.answer = there.engine.say("b")
        await post(here.app, "/v1/chat/completions", CHAT, headers={"x-request-id": "one"})
        await post(there.app, "/v1/chat/completions", CHAT, headers={"x-request-id": "two"})
        assert [line["request_id"] for line in (await get(here.app, "/v1/requests")).body["data"]] == ["two", "one"]
        assert (await get(here.app, "/v1/requests/two")).status == 200
        del ways.deliver[3]
        assert [line["request_id"] for line in (await get(here.app, "/v1/requests")).body["data"]] == ["one"]

    run(scenario())


def test_a_request_can_be_had_as_a_file_for_other_tools() -> None:
    async def scenario() -> None:
        entry = Entry()
        trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        headers = {"x-request-id": "r", "traceparent": f"00-{trace_id}-{parent}-01"}
        answer = await post(entry.app, "/v1/chat/completions", CHAT, headers=headers)
        span_id = answer.headers["traceparent"].split("-")[2]

        async def file(form: bytes) -> Response:
            return await Call(entry.app, "/v1/requests/r", b"", method="GET", query=b"format=" + form).response()

        root = (await file(b"otlp")).body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        assert (root["traceId"], root["spanId"], root["parentSpanId"]) == (trace_id, span_id, parent)
        assert any(event["ph"] == "X" for event in (await file(b"perfetto")).body["traceEvents"])
        assert (await file(b"json")).body["object"] == "request"
        refused = await file(b"pdf")
        assert (refused.status, refused.error["param"]) == (400, "format")

    run(scenario())


def test_a_parameter_that_is_none_is_refused() -> None:
    async def scenario() -> None:
        entry = Entry()
        assert (await Call(entry.app, "/v1/requests", b"", method="GET", query=b"x=1").response()).status == 400

    run(scenario())
