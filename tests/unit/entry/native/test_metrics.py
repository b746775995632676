"""GET /metrics: any worker counts for all, nothing goes back, and no client makes labels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.config import ServerConfig
from millstream.entry import questions
from millstream.messages import Measures, Stop
from millstream.messages.measures import Sample
from tests.support.asgi import Call, get, post, run
from tests.support.engine import Entry, engine_info, state
from tests.unit.entry.test_survey import open_requests, workers

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def numbers(entry: Entry) -> dict[str, float]:
    """All samples, by name and labels as they stand in the text."""
    answer = await get(entry.app, "/metrics")
    assert answer.status == 200, answer.content
    found = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for each in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(each.labels.items()) if key != "le")
            found[f"{each.name}{{{labels}}}" if labels else each.name] = each.value
    return found


def test_the_counts_are_those_of_all_workers() -> None:
    async def scenario() -> None:
        here, there, _ = workers()
        await open_requests(here, "a")
        await open_requests(there, "b", "c")
        there.engine.row("b", "x", finish=Stop())
        there.manager.release(there.manager.registry.by_rid["c"][1])
        there.manager.late_rows_dropped = 7
        found = await numbers(here)
        assert found["millstream:live_requests{process=entry}"] == 2
        assert found["millstream:late_rows_total"] == 7
        assert found["millstream:ledger_held{kind=state,process=entry}"] == 2
        assert found["millstream:process_up{process=entry-3}"] == 1

    run(scenario())


def test_requests_and_refusals_are_counted_by_words_of_ours_alone() -> None:
    async def scenario() -> None:
        entry = Entry()
        assert (await post(entry.app, "/v1/chat/completions", CHAT)).status == 200
        before = await numbers(entry)
        assert before["millstream:requests_total{api=chat,cause=stop,model=tiny}"] == 1
        for number in range(20):
            await post(entry.app, "/v1/chat/completions", {**CHAT, "model": f"junk-{number}"})
            await get(entry.app, f"/x/{number}.php")
            await get(entry.app, f"/v1/models/junk-{number}")
        after = await numbers(entry)
        assert {name: after[name] for name in after.keys() - before.keys()} == {
            "millstream:http_errors_total{route=/v1/chat/completions,status=404}": 20,
            "millstream:http_errors_total{route=/v1/models/{model},status=404}": 20,
            "millstream:http_errors_total{route=unmatched,status=404}": 20,
        }

    run(scenario())


def test_time_between_tokens_is_counted_for_rows_of_either_kind() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say("a", "b", "c", "d")
        await post(entry.app, "/v1/chat/completions", CHAT)
        assert (await numbers(entry))["millstream:inter_token_latency_seconds_count"] == 3
        assert "millstream:requests_running" not in await numbers(entry)  # nobody told

    run(scenario())


def test_what_the_dead_had_counted_is_added_and_a_worker_that_does_not_answer_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "WORKER_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        here, there, ways = workers()
        there.manager.late_rows_dropped = 7
        del ways.deliver[3]
        assert (await get(here.app, "/metrics")).status == 503  # its seven rows must not be missing
        dead = Measures("entry", 9, [Sample("late_rows", (), 7)], [])
        here.service.update(msgspec.structs.replace(state(engine_info(), **{"entry-3": "FAILED"}), measures=[dead]))
        found = await numbers(here)
        assert found["millstream:late_rows_total"] == 7
        assert found["millstream:process_up{process=entry-3}"] == 0

    run(scenario())


def test_a_successor_s_answer_is_not_taken_for_its_elder_s() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.pid = 2  # the supervisor has not said yet that it is another, nor what the first had counted
        assert (await get(entry.app, "/metrics")).status == 503

    run(scenario())


def test_while_the_detokenizer_is_replaced_the_scheduler_has_no_part_rather_than_a_smaller_one() -> None:
    async def scenario() -> None:
        entry = Entry()
        dead = [Measures(name, 9, [Sample("steps", (), 5)], []) for name in ("scheduler", "detokenizer")]
        entry.service.update(msgspec.structs.replace(state(engine_info(), detokenizer="STARTING"), measures=dead))
        assert (await numbers(entry))["millstream:steps_total"] == 5  # the detokenizer's here; it has none in truth
        entry.service.update(msgspec.structs.replace(state(engine_info(), scheduler="STARTING"), measures=dead))
        assert (await numbers(entry))["millstream:steps_total"] == 5

    run(scenario())


def test_while_all_loads_there_is_what_is_known() -> None:
    async def scenario() -> None:
        assert (await numbers(Entry(ready=False)))["millstream:stored_responses"] == 0

    run(scenario())


@pytest.mark.parametrize(
    ("access", "key", "status"),
    [("open", None, 200), ("admin", None, 401), ("admin", "user", 403), ("admin", "boss", 200), ("off", "boss", 404)],
)
def test_who_may_read_it_is_an_option_and_told_truthfully(access: Any, key: str | None, status: int) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("user",), admin_api_key=("boss",), metrics_access=access))
        shown = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = await Call(entry.app, "/metrics", b"", method="GET", headers=shown).response()
        assert answer.status == status
        boss = {"authorization": "Bearer boss"}
        told = await Call(entry.app, "/v1/capabilities", b"", method="GET", headers=boss).response()
        endpoints = {each["path"]: each["access"] for each in told.body["endpoints"]}
        assert endpoints.get("/metrics", "off") == access
        document = await Call(entry.app, "/openapi.json", b"", method="GET", headers=boss).response()
        assert ("/metrics" in document.body["paths"]) is (access != "off")

    run(scenario())


def test_a_worker_that_could_not_tell_the_supervisor_tells_nobody() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.service._tally._tell = lambda measures: False
        assert (await get(entry.app, "/metrics")).status == 503

    run(scenario())
