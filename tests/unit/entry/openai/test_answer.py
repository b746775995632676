"""Ends of a request, as its client sees them: leaving, failing, stalling, draining; before the first byte and after it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.messages import AbortReq, Stop, TokenizedGenerateReqInput
from tests.support.asgi import Call, post, run, until
from tests.support.engine import Entry, hold, state

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "rid": "r"},
    COMPLETIONS: {"prompt": "hi", "rid": "r"},
    GENERATE: {"text": "hi", "rid": "r"},
}
every_route = pytest.mark.parametrize("path", BODIES)
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class SlowTokenizer:
    """Encodes when it is told to, in whatever thread it is called."""

    vocab_size = 6

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert self.go.wait(10)
        return [5]


@every_route
@both_modes
def test_a_client_that_leaves_while_its_prompt_is_tokenised_leaves_nothing(path: str, stream: bool) -> None:
    async def scenario() -> None:
        tokenizer = SlowTokenizer()
        entry = Entry(context_length=100_000, tokenizer=tokenizer)
        long = "word " * 1000
        text = {
            CHAT: {"messages": [{"role": "user", "content": long}]},
            COMPLETIONS: {"prompt": long},
            GENERATE: {"text": long},
        }
        call = Call(entry.app, path, {**BODIES[path], **text[path], "stream": stream})
        await until(lambda: entry.manager.live_requests > 0)
        call.disconnect()
        await call.task
        assert (entry.engine.sent, entry.manager.live_requests, call.sent) == ([], 0, [])
        assert (await Call(entry.app, "/health", b"", method="GET").response()).status == 200
        tokenizer.go.set()

    run(scenario())


@every_route
@both_modes
@pytest.mark.parametrize("moment", ["waiting", "admitted", "mid-stream"])
def test_a_client_that_leaves_after_dispatch_causes_one_abort(path: str, stream: bool, moment: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, path, {**BODIES[path], "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        if moment != "waiting":
            entry.engine.accept("r")
        if moment == "mid-stream":
            entry.engine.row("r", "Hel")
            if stream:
                await call.until(b"Hel")
        call.disconnect()
        await call.task
        assert entry.engine.aborts == [AbortReq("r", "client_gone")]
        assert entry.manager.live_requests == 1
        entry.engine.row("r", "late")
        entry.engine.end("r")
        assert (entry.manager.live_requests, entry.manager.late_rows_dropped) == (0, 0)
        assert len(entry.engine.aborts) == 1
        assert b"late" not in call.content

    run(scenario())


@every_route
@both_modes
def test_a_refused_admission_is_a_real_status(path: str, stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.reject(sent.rid)
        response = await post(entry.app, path, {**BODIES[path], "stream": stream})
        assert (response.status, response.error["type"]) == (429, "overloaded_error")
        assert response.headers["retry-after"] == "1"
        assert (entry.manager.live_requests, entry.engine.aborts) == (0, [])

    run(scenario())


@every_route
@pytest.mark.parametrize(
    ("cause", "status", "kind"), [("engine_error", 500, "server_error"), ("drain", 503, "service_unavailable_error")]
)
def test_a_failure_never_looks_like_success(path: str, cause: str, status: int, kind: str) -> None:
    async def scenario() -> None:
        for stream in (False, True):
            entry = Entry()
            entry.engine.answer = lambda sent, engine=entry.engine: (
                engine.accept(sent.rid), engine.row(sent.rid, "par"), engine.end(sent.rid, cause, "It broke."),
            )  # fmt: skip
            call = Call(entry.app, path, {**BODIES[path], "stream": stream})
            response = await call.response()
            if stream:
                assert response.status == 200
                last = response.events[-1].data["error"]
                assert (last["message"], last["type"]) == ("It broke.", kind)
                assert set(last) == {"message", "type", "param", "code"}
                assert b"par" in response.content
                assert b'"finish_reason":"' not in response.content
                assert b"[DONE]" not in response.content
                assert not call.closed
            else:
                assert (response.status, response.error["message"], response.error["type"]) == (status, "It broke.", kind)
            assert (entry.manager.live_requests, entry.engine.aborts) == (0, [])

    run(scenario())


def test_an_aborted_chat_is_an_error_that_no_client_retries_and_an_aborted_generate_is_an_answer() -> None:
    async def scenario() -> None:
        for path, status in ((CHAT, 499), (GENERATE, 200)):
            entry = Entry()
            entry.engine.answer = hold
            call = Call(entry.app, path, BODIES[path])
            await entry.engine.wait_sent(TokenizedGenerateReqInput)
            entry.engine.accept("r")
            entry.engine.row("r", "Hel")
            aborted = await post(entry.app, "/abort_request", {"rid": "r"})
            assert aborted.body == {"aborted": ["r"]}
            entry.engine.end("r", "aborted", "aborted by request")
            response = await call.response()
            assert response.status == status
            if path == GENERATE:
                assert response.body["text"] == "Hel"
                assert response.body["meta_info"]["finish_reason"] == {"type": "abort", "message": "aborted by request"}
            else:
                assert response.error["code"] == "aborted"

    run(scenario())


@both_modes
def test_one_failed_choice_ends_the_call_and_aborts_the_others(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, CHAT, {**BODIES[CHAT], "n": 3, "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 3)
        entry.engine.accept("r-0", "r-1", "r-2")
        entry.engine.end("r-1", "engine_error", "bad row")
        response = await call.response()
        assert (b"bad row" in response.content, response.status) == (True, 200 if stream else 500)
        assert [(abort.rid, abort.cause) for abort in entry.engine.aborts] == [("r-0", "aborted"), ("r-2", "aborted")]
        entry.engine.end("r-0")
        entry.engine.end("r-2")
        assert entry.manager.live_requests == 0

    run(scenario())


@both_modes
def test_a_fault_while_the_answer_is_made_ends_it_with_one_word(
    stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("no such member")

    monkeypatch.setattr("millstream.entry.openai.chunks.finish_members", broken)
    monkeypatch.setattr("millstream.entry.openai.answer.finish_members", broken)

    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, "/v1/completions", {"prompt": "hi", "n": 2, "rid": "r", "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        entry.engine.accept("r-0", "r-1")
        entry.engine.row("r-0", "x", finish=Stop())
        entry.engine.row("r-1", "x", finish=None if stream else Stop())
        response = await call.response()
        error = response.events[-1].data["error"] if stream else response.error
        assert error["code"] == "engine_error"
        if stream:
            assert [(abort.rid, abort.cause) for abort in entry.engine.aborts] == [("r-1", "engine_error")]
            entry.engine.end("r-1", "engine_error")
        assert entry.manager.ledger.totals() == {}

    with caplog.at_level("INFO", logger="millstream.request"):
        run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name == "millstream.request"]
    assert len(lines) == 2
    assert ("cause=engine_error" in lines[1]) == stream


@every_route
@both_modes
def test_the_death_of_the_scheduler_ends_open_requests(path: str, stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, path, {**BODIES[path], "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        if stream:
            await until(lambda: bool(call.sent))
        entry.service.update(state(scheduler="FAILED"))
        response = await call.response()
        if stream:
            assert response.events[-1].data["error"]["code"] == "engine_error"
            assert b"[DONE]" not in response.content
        else:
            assert (response.status, response.error["code"]) == (503, "engine_error")
        assert entry.manager.live_requests == 0
        for probe, status in (("/ready", 503), ("/health", 200)):
            assert (await Call(entry.app, probe, b"", method="GET").response()).status == status
        refused = await post(entry.app, path, BODIES[path])
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")

    run(scenario())


@both_modes
def test_a_drain_refuses_new_requests_and_lets_running_ones_end(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, CHAT, {**BODIES[CHAT], "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        entry.service.draining = True
        refused = await post(entry.app, CHAT, BODIES[CHAT])
        assert (refused.status, refused.error["type"]) == (503, "service_unavailable_error")
        entry.engine.say("done")(entry.engine.requests[0])
        response = await call.response()
        assert (response.status, b"done" in response.content) == (200, True)

    run(scenario())


@every_route
def test_a_request_whose_prompt_is_not_ready_when_the_drain_begins_is_refused(path: str) -> None:
    async def scenario() -> None:
        tokenizer = SlowTokenizer()
        entry = Entry(context_length=100_000, tokenizer=tokenizer)
        body = {CHAT: {"messages": [{"role": "user", "content": "word " * 1000}]}, COMPLETIONS: {"prompt": "word " * 1000}}
        call = Call(entry.app, path, {**BODIES[path], **body.get(path, {"text": "word " * 1000})})
        await until(lambda: entry.manager.live_requests > 0)
        entry.service.draining = True
        assert entry.manager.abort_all("drain") == ["r"]
        response = await call.response()
        tokenizer.go.set()
        assert (response.status, response.error["code"], response.headers["retry-after"]) == (503, "drain", "5")
        assert (entry.engine.sent, entry.manager.live_requests) == ([], 0)

    run(scenario())


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_silent_stream_gets_comments_and_they_change_nothing(path: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(sse_keep_alive_s=0.01))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, path, {**BODIES[path], "stream": True})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        await call.until(b": keep-alive\n\n: keep-alive\n\n")
        entry.engine.say("done")(entry.engine.requests[0])
        response = await call.response()
        assert response.events[-1].data == "[DONE]"

    run(scenario())


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_client_that_does_not_read_costs_one_row_and_is_dropped_after_a_while(path: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(write_timeout_s=0.3))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, path, {**BODIES[path], "stream": True})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        entry.engine.row("r", "first")
        await call.until(b"first")
        call.stop_reading()
        events = len(call.sent)
        for _ in range(50):
            entry.engine.row("r", "x")
            await asyncio.sleep(0)
        assert len(call.sent) == events
        await call.task
        assert call.closed
        assert entry.engine.aborts == [AbortReq("r", "slow_reader")]
        entry.engine.end("r")
        assert entry.manager.live_requests == 0

    run(scenario())


def test_a_slow_client_gets_everything_in_fewer_events() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, CHAT, {**BODIES[CHAT], "stream": True})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        await call.until(b"assistant")
        call.stop_reading()
        for index in range(100):
            entry.engine.row("r", f"{index},")
            await asyncio.sleep(0)
        entry.engine.say("end")(entry.engine.requests[0])
        call.read_on()
        response = await call.response()
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in response.chunks)
        assert text == "".join(f"{index}," for index in range(100)) + "end"
        assert len(response.chunks) < 10

    run(scenario())


@both_modes
def test_rows_that_come_one_by_one_long_after_admission_make_the_whole_text(stream: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, CHAT, {**BODIES[CHAT], "rid": "r", "stream": stream})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        for number in range(5):
            for _ in range(5):  # turns in which the consumer gets to wait
                await asyncio.sleep(0)
            entry.engine.row("r", f"{number},")
        entry.engine.row("r", "end", finish=Stop())
        response = await call.response()
        if stream:
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in response.chunks)
        else:
            text = response.body["choices"][0]["message"]["content"]
        assert text == "0,1,2,3,4,end"
        assert entry.manager.late_rows_dropped == 0

    run(scenario())


def test_a_second_request_with_a_live_rid_is_409_and_harms_nobody() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, CHAT, BODIES[CHAT])
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        second = await post(entry.app, CHAT, BODIES[CHAT])
        assert (second.status, second.error["param"]) == (409, "rid")
        entry.engine.say("fine")(entry.engine.requests[0])
        assert (await call.response()).body["choices"][0]["message"]["content"] == "fine"

    run(scenario())


def test_every_answer_has_a_request_id_the_clients_own_where_it_sent_one_and_it_is_no_key() -> None:
    async def scenario() -> None:
        entry = Entry()
        headers = {"content-type": "application/json", "X-Request-Id": "same"}
        body = {"messages": BODIES[CHAT]["messages"]}
        calls = [Call(entry.app, CHAT, body, headers=headers) for _ in range(2)]
        responses = [await call.response() for call in calls]
        assert [r.headers["x-request-id"] for r in responses] == ["same", "same"]
        assert len({r.body["id"] for r in responses}) == 2
        odd = await post(entry.app, CHAT, body, headers={"X-Request-Id": "a\tb"})
        assert odd.headers["x-request-id"].startswith("req_")

    run(scenario())
