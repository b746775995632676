"""One end for each request, one abort at most, no state kept too long or dropped too early."""

from __future__ import annotations

import asyncio

import pytest

from millstream.entry.failure import Failure, RequestFailed
from millstream.errors import DuplicateRid
from millstream.messages import (
    Abort,
    AbortReq,
    BatchStrOutput,
    Stop,
    TextRow,
    Usage,
)
from tests.support.asgi import run
from tests.unit.entry.harness import make, request, submit, submit_admitted, submit_held


def test_after_a_fault_of_ours_the_rid_stays_taken_until_the_final_row(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        engine.row("r", "first")
        list(await generation.receive())

        def broken(text: str, token_ids: list[int]) -> bool:
            raise ValueError("cannot be written")

        generation.states[0].shortcut = broken
        engine.row("r", "lost")
        engine.row("r", "late")  # it was on its way already
        with pytest.raises(RequestFailed) as caught:
            list(await generation.receive())
        assert (caught.value.failure.code, caught.value.failure.cause) == ("engine_error", "engine_error")
        manager.release(generation)
        with pytest.raises(DuplicateRid):
            await submit(manager)
        assert engine.aborts == [AbortReq("r", "engine_error")]
        engine.row("r", "", finish=Stop())
        assert manager.live_requests == 0
        assert manager.ledger.totals() == {}

    with caplog.at_level("INFO", logger="millstream.request"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "millstream.request"]
    assert "cause=engine_error" in line  # what the client was told, and not what the late final row says


def test_a_rid_may_be_used_again_while_its_first_text_is_still_read() -> None:
    async def scenario() -> None:
        manager, engine = make()
        first = await submit(manager)
        second = await submit_held(manager, engine)
        assert manager.ledger.totals() == {"state": 1, "generation": 1, "reader": 2}
        manager.release(first)
        assert manager.ledger.totals() == {"state": 1, "generation": 1, "reader": 1}
        engine.accept("r")
        engine.row("r", "", finish=Stop())
        manager.release(await second)
        assert manager.ledger.totals() == {}

    run(scenario())


def test_an_end_by_the_detokenizer_is_told_to_the_scheduler() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        manager.handle(BatchStrOutput([TextRow("r", 0, "", [], Usage(3, 1), Abort("engine_error", "no room", 503))]))
        ((_, row),) = await generation.receive()
        manager.release(generation)
        assert row.finish == Abort("engine_error", "no room", 503)
        assert (engine.aborts, manager.live_requests) == ([AbortReq("r", "engine_error")], 0)

    run(scenario())


def test_abort_by_rid_is_exact_and_reaches_every_request_of_a_call() -> None:
    async def scenario() -> None:
        manager, engine = make()
        await submit_admitted(manager, engine, request("r1"), rid="r1")
        await submit_admitted(manager, engine, request("r10"), rid="r10")
        await submit_admitted(manager, engine, request("c-0"), request("c-1"), rid="c")
        assert manager.abort("r") == []
        assert manager.abort("r1") == ["r1"]
        assert manager.abort("c-1") == ["c-1"]
        assert manager.abort("c") == ["c-0", "c-1"]
        assert [abort.rid for abort in engine.aborts] == ["r1", "c-1", "c-0"]
        assert {abort.cause for abort in engine.aborts} == {"aborted"}
        assert manager.live_requests == 4

    run(scenario())


def test_a_dead_scheduler_ends_everything_at_once() -> None:
    async def scenario() -> None:
        manager, engine = make()
        running = await submit_admitted(manager, engine, request("run"), rid="run")
        waiting = await submit_held(manager, engine)
        manager.fail_all(Failure(503, "dead", "service_unavailable_error"))
        with pytest.raises(RequestFailed):
            list(await running.receive())
        with pytest.raises(RequestFailed):
            await waiting
        assert manager.live_requests == 0
        assert engine.aborts == []
        manager.release(running)

    run(scenario())


def test_idle_is_waited_for_and_given_up() -> None:
    async def scenario() -> None:
        manager, engine = make()
        assert await manager.registry.wait_idle(1)
        generation = await submit_admitted(manager, engine)
        assert not await manager.registry.wait_idle(0.01)
        engine.row("r", "", finish=Stop())
        assert not await manager.registry.wait_idle(0.01)  # its client has not got all of it
        waiting = asyncio.create_task(manager.registry.wait_idle(10))
        await asyncio.sleep(0)
        manager.release(generation)
        assert await waiting

    run(scenario())
