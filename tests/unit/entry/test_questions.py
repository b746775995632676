"""What an entry worker asks of the others: answered, failed with who had to answer, or given up."""

from __future__ import annotations

import asyncio

import pytest

from millstream.entry.failure import Failure
from millstream.errors import EngineDeadError
from millstream.messages import (
    AbortOthersReply,
    AbortOthersReq,
    Received,
    ReplayReq,
    StatsReq,
)
from tests.support.asgi import run, until
from tests.unit.entry.harness import make, request, submit, submit_admitted


def test_stats_come_back_or_time_out() -> None:
    async def scenario() -> None:
        manager, engine = make()
        assert (await manager.questions.stats()).pages_free == 60
        engine.handle = lambda message: None
        with pytest.raises(EngineDeadError):
            await manager.questions.stats(timeout_s=0.01)

    run(scenario())


def test_a_replay_is_asked_for_with_what_has_come_taken_or_not() -> None:
    async def scenario() -> None:
        manager, engine = make(entry=4)
        manager.ask_replay(77)
        assert engine.sent == []  # nothing is live
        rids = ("taken", "waiting", "new")
        taken, waiting, new = [await submit_admitted(manager, engine, request(rid), rid=rid) for rid in rids]
        for number in range(70):  # more pieces than the digest keeps
            engine.row("taken", f"{number:03d}")
            list(await taken.receive())
        engine.row("waiting", "水")
        list(await waiting.receive())
        for text in ("a", "", "bc"):
            engine.row("waiting", text)
        early = asyncio.create_task(submit(manager, request("early", text="word " * 1000), rid="early"))
        await until(lambda: manager.live_requests == 4)
        manager.ask_replay(77, lost_at=1.5)
        assert taken.states[0].obj.timing.lost == 1.5
        assert taken.states[0].obj.timing.replayed > 1.5
        received = [Received("taken", 70, 210), Received("waiting", 4, 4), Received("new", 0, 0)]
        assert engine.sent[-1] == ReplayReq(received, 77, 4)  # without the one that was not sent yet
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        for generation in (taken, waiting, new):
            manager.release(generation)

    run(scenario())


def test_questions_fail_with_a_process_that_had_to_answer() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.handle = lambda message: None
        asked = asyncio.create_task(manager.questions.stats())
        await engine.wait_sent(StatsReq)
        manager.questions.fail(Failure(503, "gone", "service_unavailable_error", code="engine_dead"))
        with pytest.raises(EngineDeadError, match="gone"):
            await asked

    run(scenario())


def test_what_is_not_here_is_aborted_through_the_scheduler() -> None:
    async def scenario() -> None:
        manager, engine = make(entry=4)
        asked = asyncio.create_task(manager.questions.abort_others(["x"], "pre"))
        await engine.wait_sent(AbortOthersReq)
        (sent,) = engine.sent
        assert (sent.entry, sent.rids, sent.prefix) == (4, ["x"], "pre")
        manager.handle(AbortOthersReply(sent.id, ["x", "pre-1"]))
        assert await asked == ["x", "pre-1"]

    run(scenario())
