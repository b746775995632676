"""Responses by their id: read, continued, deleted, cancelled, listed; by their own key only, from any worker, within bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.responses import ResponseInputMessageItem, ResponseItemList, ResponseOutputMessage

from millstream.config import ServerConfig
from millstream.entry.http.body import INLINE_BYTES
from millstream.entry.openai.responses import create, lookup
from millstream.entry.openai.responses.ids import keeper
from millstream.entry.openai.responses.lookup import answer_worker
from millstream.messages import ResponseReq, TokenizedGenerateReqInput, WorkerReq
from tests.support.asgi import Call, get, run, until
from tests.support.engine import Entry, engine_info, hold, state
from tests.support.openai_models import extras
from tests.unit.entry.openai.responses.harness import PATH, ask, checked, events_of, joined, made, prompt_of, send, text_of
from tests.unit.entry.test_survey import Ways

KEYS = ServerConfig(api_key=("one", "two"), admin_api_key=("boss",))
ROUTES = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]


def key(name: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {name}"}


def test_a_response_is_read_until_it_is_deleted() -> None:
    async def scenario() -> None:
        entry = Entry()
        body = await made(entry, {}, "Hel", "lo")
        assert (await send(entry, "GET", body["id"])).body == body
        assert (await send(entry, "GET", body["id"], query=b"include[]=reasoning.encrypted_content&stream=false")).body == body
        assert (await send(entry, "POST", body["id"] + "/cancel")).body == body  # it has ended: nothing to cancel
        deleted = await send(entry, "DELETE", body["id"])
        assert deleted.body == {"id": body["id"], "object": "response", "deleted": True}
        assert entry.service.responses.bytes == 0
        for method, path in ROUTES:
            response = await send(entry, method, body["id"] + path)
            assert (response.status, response.error["code"]) == (404, "response_not_found")
        response = await ask(entry, {"previous_response_id": body["id"]})
        assert (response.status, response.error["param"]) == (404, "previous_response_id")
        assert response.error["code"] == "previous_response_not_found"

    run(scenario())


def test_what_asks_not_to_be_kept_is_not() -> None:
    async def scenario() -> None:
        entry = Entry()
        for more in ({"store": False}, {"store": False, "stream": True}):
            response = await ask(entry, more)
            body = response.body if "stream" not in more else events_of(response.content)[-1].data["response"]
            assert (await send(entry, "GET", body["id"])).status == 404

    run(scenario())


def test_a_deleted_response_takes_nothing_from_those_that_continued_it() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await made(entry, {"input": "one"})
        two = await made(entry, {"input": "two", "previous_response_id": one["id"]})
        await made(entry, {"input": "three", "previous_response_id": two["id"]})
        expected = prompt_of(entry)
        await send(entry, "DELETE", one["id"])
        await made(entry, {"input": "three", "previous_response_id": two["id"]})
        assert prompt_of(entry) == expected

    run(scenario())


def test_the_response_that_was_not_used_for_longest_makes_room() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_stored_responses=2))
        one, two = await made(entry), await made(entry)
        await send(entry, "GET", one["id"])
        three = await made(entry)
        found = [(await send(entry, "GET", each["id"])).status for each in (one, two, three)]
        assert found == [200, 404, 200]
        response = await ask(entry, {"previous_response_id": two["id"]})
        assert (response.status, response.error["param"]) == (404, "previous_response_id")
        info = (await get(entry.app, "/server_info")).body
        assert (info["stored_responses"], info["evicted_responses"]) == (2, 1)
        assert info["stored_response_bytes"] == entry.service.responses.bytes > 0

    run(scenario())


def test_responses_are_bounded_in_bytes_and_a_giant_costs_no_other_its_place_for_nothing() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(max_stored_response_bytes=4000))
        for _ in range(9):
            await made(entry)
        store = entry.service.responses
        assert 0 < len(store) < 9
        assert store.bytes <= 4000
        small = await made(entry)
        giant = await made(entry, {"metadata": {str(number): "x" * 512 for number in range(16)}})
        assert (await send(entry, "GET", giant["id"])).status == 404
        assert (await send(entry, "GET", small["id"])).status == 200

    run(scenario())


def test_a_key_sees_only_its_own_responses() -> None:
    async def scenario() -> None:
        entry = Entry(KEYS)
        mine = await made(entry, headers=key("one"))
        item = mine["output"][0]["id"]
        for other in ("two", "boss"):
            for method, path in ROUTES:
                assert (await send(entry, method, mine["id"] + path, headers=key(other))).status == 404
            for body in ({"previous_response_id": mine["id"]}, {"input": [{"type": "item_reference", "id": item}]}):
                assert (await ask(entry, body, headers=key(other))).status == 404
        assert (await send(entry, "GET", mine["id"], headers=key("one"))).body == mine
        await made(entry, {"previous_response_id": mine["id"]}, headers=key("one"))
        assert (await send(entry, "GET", mine["id"])).status == 401

    run(scenario())


def test_a_key_cannot_end_what_another_has_running() -> None:
    async def scenario() -> None:
        entry = Entry(KEYS)
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": "hi", "stream": True, "rid": "r"}, headers=key("one"))
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        await call.until(b"response.created")
        (response_id,) = entry.service.responses._live
        for method, path in ROUTES:
            assert (await send(entry, method, response_id + path, headers=key("two"))).status == 404
        assert entry.engine.aborts == []
        entry.engine.say("fine")(entry.engine.requests[0])
        assert joined(events_of((await call.response()).content)) == "fine"

    run(scenario())


def test_without_keys_a_bearer_that_nobody_checks_changes_nothing() -> None:
    async def scenario() -> None:
        entry = Entry()
        body = await made(entry, headers=key("anything"))
        assert (await send(entry, "GET", body["id"], headers=key("else"))).status == 200

    run(scenario())


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_live_stream_is_cancelled_by_its_id(is_kept: bool) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": "hi", "stream": True, "rid": "r", "store": is_kept})
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        entry.engine.row("r", "Hel")
        await call.until(b"Hel")
        (response_id,) = entry.service.responses._live
        seen = await send(entry, "GET", response_id)
        assert (seen.status, seen.body.get("status")) == ((200, "in_progress") if is_kept else (404, None))
        cancelling = asyncio.create_task(send(entry, "POST", response_id + "/cancel"))
        await until(lambda: len(entry.engine.aborts) == 1)
        entry.engine.end("r", "aborted")
        answer = checked((await cancelling).body)
        assert (answer["status"], answer["error"], text_of(answer)) == ("cancelled", None, "Hel")
        events = events_of((await call.response()).content)
        assert (events[-1].name, events[-1].data["response"], joined(events)) == ("response.failed", answer, "Hel")
        again = await send(entry, "POST", response_id + "/cancel")
        assert (again.status, again.body if is_kept else None) == ((200, answer) if is_kept else (404, None))

    run(scenario())


def test_a_whole_response_that_is_cancelled_says_so() -> None:
    async def scenario() -> None:
        entry = Entry()

        def begin(sent: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.row(sent.rid, "Hel")

        entry.engine.answer = begin
        call = Call(entry.app, PATH, {"input": "hi", "rid": "r"})
        await until(lambda: len(entry.service.responses._live) == 1)
        aborted = await Call(entry.app, "/abort_request", {"rid": "r"}).response()
        assert aborted.body == {"aborted": ["r"]}
        entry.engine.end("r", "aborted")
        response = await call.response()
        assert (response.status, checked(response.body)["status"], text_of(response.body)) == (200, "cancelled", "Hel")

    run(scenario())


def test_a_background_response_is_polled_to_its_end_whoever_left() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, PATH, {"input": "hi", "background": True, "rid": "r"})
        body = checked((await call.response()).body)
        assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
        call.disconnect()
        assert checked((await send(entry, "GET", body["id"])).body)["status"] == "queued"
        entry.engine.row("r", "Hel")
        assert checked((await send(entry, "GET", body["id"])).body)["status"] == "in_progress"
        response = await ask(entry, {"previous_response_id": body["id"]})
        assert (response.status, response.error["param"]) == (400, "previous_response_id")
        entry.engine.say("lo")(entry.engine.requests[0])
        await until(lambda: not entry.service.responses._live)
        done = checked((await send(entry, "GET", body["id"])).body)
        assert (done["status"], text_of(done), done["created_at"]) == ("completed", "Hello", body["created_at"])
        assert entry.manager.ledger.totals() == {}

    run(scenario())


def test_a_background_response_that_fails_says_how() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        body = (await ask(entry, {"background": True, "rid": "r"})).body
        entry.engine.end("r", "engine_error", "It broke.")
        await until(lambda: not entry.service.responses._live)
        failed = checked((await send(entry, "GET", body["id"])).body)
        assert (failed["status"], failed["error"]["message"]) == ("failed", "It broke.")

    run(scenario())


def test_deleting_a_background_response_ends_it() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        body = (await ask(entry, {"background": True, "rid": "r"})).body
        await until(lambda: len(entry.service.responses._live) == 1)
        assert (await send(entry, "DELETE", body["id"])).body["deleted"] is True
        assert [abort.cause for abort in entry.engine.aborts] == ["aborted"]
        entry.engine.end("r", "aborted")
        await until(lambda: not entry.service.responses._live)
        assert (await send(entry, "GET", body["id"])).status == 404

    run(scenario())


def test_items_are_listed_in_pages_newest_first_unless_told_otherwise() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await made(entry, {"input": [{"role": "user", "content": str(number)} for number in range(3)]}, "ok")
        two = await made(entry, {"input": "last", "previous_response_id": one["id"], "instructions": "Be brief."}, "ok")
        path = two["id"] + "/input_items"
        whole = (await send(entry, "GET", path)).body
        assert whole.keys() == ResponseItemList.model_fields.keys()
        for item in whole["data"]:
            assert extras(ResponseOutputMessage if item["role"] == "assistant" else ResponseInputMessageItem, item) == set()
        texts = [item["content"][0]["text"] for item in whole["data"]]
        assert (texts, whole["object"], whole["has_more"]) == (["last", "ok", "2", "1", "0"], "list", False)
        assert (whole["first_id"], whole["last_id"]) == (whole["data"][0]["id"], whole["data"][-1]["id"])
        assert whole["data"][1] == one["output"][0]
        page = (await send(entry, "GET", path, query=b"order=asc&limit=2")).body
        assert (page["data"], page["has_more"]) == (whole["data"][:-3:-1], True)
        rest = (await send(entry, "GET", path, query=f"order=asc&limit=3&after={page['last_id']}".encode())).body
        assert (rest["data"], rest["has_more"]) == (whole["data"][2::-1], False)
        none = (await send(entry, "GET", path, query=f"order=asc&after={rest['last_id']}".encode())).body
        assert (none["data"], none["first_id"], none["has_more"]) == ([], None, False)

    run(scenario())


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/input_items", "limit=0", "limit"), ("/input_items", "limit=101", "limit"), ("/input_items", "limit=x", "limit"),
        ("/input_items", "limit=" + "9" * 5000, "limit"), ("/input_items", "limit=\u00b2", "limit"),
        ("/input_items", "order=up", "order"), ("/input_items", "after=msg_x", "after"), ("/input_items", "colour=1", "colour"),
        ("/input_items", "include[]=x", "include[0]"), ("", "include=x", "include[0]"), ("", "stream=true", "stream"),
        ("", "starting_after=3", "starting_after"), ("", "colour=1", "colour"),
    ],
)  # fmt: skip
def test_a_wrong_query_is_named(path: str, query: str, param: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        body = await made(entry)
        response = await send(entry, "GET", body["id"] + path, query=query.encode())
        assert (response.status, response.error["param"]) == (400, param)

    run(scenario())


def test_a_reference_stands_for_an_item_of_the_conversation_or_of_any_response() -> None:
    async def scenario() -> None:
        entry = Entry()
        one = await made(entry, {"input": "one"}, "first")
        listed = (await send(entry, "GET", one["id"] + "/input_items")).body["data"]
        ids = [listed[0]["id"], one["output"][0]["id"]]
        await made(entry, {"input": "two", "previous_response_id": one["id"]})
        expected = prompt_of(entry)
        references: list[dict[str, Any]] = [{"type": "item_reference", "id": ids[0]}, {"id": ids[1]}]
        two = await made(entry, {"input": [*references, {"role": "user", "content": "two"}]})
        assert prompt_of(entry) == expected
        await made(entry, {"input": [references[1]], "previous_response_id": two["id"]})
        wrong = [{"type": "item_reference", "id": two["output"][0]["id"][:-5] + "00000"}]
        response = await ask(entry, {"input": wrong})
        assert (response.status, response.error["param"], response.error["code"]) == (404, "input[0].id", "item_not_found")

    run(scenario())


def two_workers() -> tuple[Entry, Entry]:
    """Workers 0 and 3 of one server, which reach each other."""
    ways = Ways()
    pair = Entry(number=0), Entry(number=3)
    for entry in pair:
        entry.service._to_workers = ways  # type: ignore[assignment]
        entry.service.update(state(engine_info(), **{"entry-3": "READY"}))

        def deliver(message: Any, entry: Entry = entry) -> None:
            if isinstance(message, ResponseReq):
                entry.service.responses.run(answer_worker(entry.service, message))
            elif isinstance(message, WorkerReq):
                entry.service.answer_worker(message)
            else:
                entry.manager.handle(message)

        ways.deliver[entry.service.entry] = deliver
    return pair


def test_any_worker_finds_continues_cancels_and_deletes_what_another_keeps() -> None:
    async def scenario() -> None:
        here, there = two_workers()
        body = await made(there, {"input": "one"}, "first")
        assert keeper(body["id"]) == 3
        assert (await send(here, "GET", body["id"])).body == body
        assert (await send(here, "GET", body["id"] + "/input_items")).body["data"][0]["content"][0]["text"] == "one"
        one = await made(here, {"input": "two", "previous_response_id": body["id"]})
        assert keeper(one["id"]) == 0
        await made(there, {"input": "two", "previous_response_id": body["id"]})
        assert prompt_of(here) == prompt_of(there)
        there.engine.answer = lambda sent: there.engine.accept(sent.rid)
        running = (await ask(there, {"background": True, "rid": "r"})).body
        cancelling = asyncio.create_task(send(here, "POST", running["id"] + "/cancel"))
        await until(lambda: len(there.engine.aborts) == 1)
        there.engine.end("r", "aborted")
        assert (await cancelling).body["status"] == "cancelled"
        assert (await send(here, "DELETE", body["id"])).body["deleted"] is True
        for entry in (here, there):
            assert (await send(entry, "GET", body["id"])).status == 404
        info = (await get(here.app, "/server_info")).body
        assert info["stored_responses"] == 3

    run(scenario())


def test_what_a_worker_kept_that_is_gone_is_not_found() -> None:
    async def scenario() -> None:
        here, there = two_workers()
        body = await made(there)
        here.service.update(state(engine_info()))
        response = await send(here, "GET", body["id"])
        assert (response.status, response.error["code"]) == (404, "response_not_found")

    run(scenario())


def test_a_fault_of_ours_in_the_background_is_a_failed_response_and_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        monkeypatch.setattr(create, "collect", broken)
        body = (await ask(entry, {"background": True, "rid": "r"})).body
        await until(lambda: len(entry.engine.aborts) == 1)
        assert entry.engine.aborts[0].cause == "engine_error"
        entry.engine.end("r", "engine_error")
        failed = checked((await send(entry, "GET", body["id"])).body)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert (entry.manager.live_requests, entry.manager.ledger.totals()) == (0, {})

    run(scenario())


def test_a_drain_fails_a_background_response_that_does_not_end_in_time() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        body = (await ask(entry, {"background": True, "rid": "r"})).body
        await until(lambda: len(entry.service.responses._live) == 1)
        assert not await entry.manager.registry.wait_idle(0)
        assert entry.manager.abort_all("drain") == ["r"]
        entry.engine.end("r", "drain")
        assert await entry.manager.registry.wait_idle(5)
        assert (await send(entry, "GET", body["id"])).body["status"] == "failed"

    run(scenario())


def test_cancelling_for_a_client_that_does_not_read_waits_for_it_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lookup, "END_WAIT_S", 0.0)
        entry = Entry()
        entry.engine.answer = hold
        call = Call(entry.app, PATH, {"input": "hi", "stream": True, "rid": "r"})
        await until(lambda: len(entry.engine.requests) == 1)
        entry.engine.accept("r")
        await call.until(b"response.content_part.added")
        call.stop_reading()
        entry.engine.row("r", "Hel")
        (response_id,) = entry.service.responses._live
        answer = (await send(entry, "POST", response_id + "/cancel")).body
        assert (answer["status"], len(entry.engine.aborts)) == ("in_progress", 1)
        entry.engine.end("r", "aborted")
        call.read_on()
        await call.task
        assert (await send(entry, "GET", response_id)).body["status"] == "cancelled"

    run(scenario())


def test_a_conversation_of_many_bytes_is_continued_and_listed() -> None:
    async def scenario() -> None:
        entry = Entry()
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 2 * INLINE_BYTES}
        body = await made(entry, {"input": [reasoning, {"role": "user", "content": "one"}]})
        await made(entry, {"input": "two", "previous_response_id": body["id"]})
        by_turns = prompt_of(entry)
        listed = (await send(entry, "GET", body["id"] + "/input_items", query=b"order=asc")).body
        assert listed["data"][0] == reasoning
        spoken = [{"role": "user", "content": "one"}, body["output"][0], {"role": "user", "content": "two"}]
        await made(entry, {"input": spoken})
        assert prompt_of(entry) == by_turns

    run(scenario())
