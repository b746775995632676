"""An end that is due and does not come: the entry makes it, once, tells the scheduler, and drops what comes after it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from millstream.entry.failure import RequestFailed
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.messages import (
    Abort,
    AbortNotice,
    AbortReq,
    AdmissionOutput,
    Delivered,
    Rejection,
    Stop,
    TokenizedGenerateReqInput,
    Usage,
)
from millstream.messages.finish import AbortCause
from millstream.observe.ledger import Ledger
from tests.support.asgi import run
from tests.support.engine import TOKENIZER, FakeEngine, engine_info, hold
from tests.unit.entry.harness import request, submit

NOW = 1.0  # by the clock of the manager, and of requests


def make() -> tuple[TokenizerManager, FakeEngine]:
    """A manager whose patience is short, and an engine that admits and says nothing."""
    engine = FakeEngine()
    manager = TokenizerManager(
        tokenizer=TOKENIZER,
        to_scheduler=engine,
        engine=engine_info(),
        ledger=Ledger("entry", strict=True),
        clock=lambda: NOW,
        end_grace_s=0.01,
    )
    engine.handle = manager.handle
    engine.answer = lambda sent: engine.accept(sent.rid)
    return manager, engine


async def rows_of(generation: Any) -> list[Any]:
    """The next rows."""
    while not (rows := list(await generation.receive())):
        pass
    return rows


def assert_ended(manager: TokenizerManager, engine: FakeEngine, cause: AbortCause) -> None:
    """Everybody knows, nothing is held, and rows that come now are nobody's."""
    assert engine.sent[1:] == [AbortReq("r", cause), Delivered(["r"], 0)]
    assert (manager.live_requests, manager.ledger.totals()) == (0, {})
    engine.row("r", "late")
    engine.end("r", cause)
    assert manager.late_rows_dropped == 2
    assert engine.sent[1:] == [AbortReq("r", cause), Delivered(["r"], 0)]  # the late end is no end of anything


def causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The causes in the log lines of ended requests."""
    lines = [record.getMessage() for record in caplog.records if record.name == "millstream.request"]
    return [word.removeprefix("cause=") for line in lines for word in line.split() if word.startswith("cause=")]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_deadline_that_nobody_keeps_is_kept_by_the_entry(rows: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager, request(deadline=NOW + 0.01))
        for _ in range(rows):
            engine.row("r", "a")
        received: list[Any] = []
        while not received or received[-1].finish is None:
            received += [row for _, row in await generation.receive()]
        assert received[-1].finish == Abort("deadline", "The request did not end within 0.01 s.", 504)
        assert "".join(row.text for row in received) == "a" * rows  # what came before its end is its client's
        assert received[-1].usage == Usage(3, rows, cached_tokens=min(rows, 1))
        manager.release(generation)
        assert_ended(manager, engine, "deadline")

    with caplog.at_level(logging.INFO, logger="millstream.request"):
        run(scenario())
    assert causes(caplog) == ["deadline"]


def test_an_abort_that_nobody_answers_is_answered_by_the_entry(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager)
        assert manager.abort("r") == ["r"]
        ((_, row),) = await rows_of(generation)
        assert row.finish == Abort("aborted", "The request was aborted.", 499)
        manager.release(generation)
        assert_ended(manager, engine, "aborted")

    with caplog.at_level(logging.INFO, logger="millstream.request"):
        run(scenario())
    assert causes(caplog) == ["aborted"]


def test_an_abort_by_another_worker_that_nobody_answers_is_answered_here() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager)
        manager.handle(AbortNotice([generation.states[0].slot, 4711], "aborted"))
        assert manager.abort("r") == ["r"]  # the scheduler knows
        ((_, row),) = await rows_of(generation)
        assert row.finish == Abort("aborted", "The request was aborted.", 499)
        manager.release(generation)
        assert engine.sent[1:] == [Delivered(["r"], 0)]
        assert (manager.live_requests, manager.ledger.totals()) == (0, {})

    run(scenario())


@pytest.mark.parametrize("verdict", ["accepted", "rejected"])
def test_one_that_was_not_admitted_fails_with_its_status_and_the_verdict_that_comes_later_is_not_another_s(
    verdict: str,
) -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        with pytest.raises(RequestFailed) as caught:
            await submit(manager, request(deadline=NOW + 0.01))
        assert (caught.value.failure.status, caught.value.failure.code) == (504, "deadline")
        assert caught.value.failure.message == "The request did not end within 0.01 s."
        assert engine.sent[1:] == [AbortReq("r", "deadline"), Delivered(["r"], 0)]
        assert manager.ledger.totals() == {}
        second = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput, 2)
        if verdict == "accepted":
            engine.handle(AdmissionOutput(accepted=[engine.requests[0].slot]))
        else:
            engine.handle(AdmissionOutput(rejected=[Rejection("r", engine.requests[0].slot, "late", 504, "timeout_error")]))
        assert not manager.registry.by_rid["r"][0].accepted
        assert manager.ledger.totals() == {"state": 1, "generation": 1, "reader": 1}
        engine.say("hi")(engine.requests[1])
        generation = await second
        ((_, row),) = await rows_of(generation)
        assert (row.text, row.finish) == ("hi", Stop())
        manager.release(generation)
        assert manager.ledger.totals() == {}

    run(scenario())


def test_a_choice_of_several_that_is_aborted_ends_alone() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager, request("c-0"), request("c-1"), rid="c")
        assert manager.abort("c-1") == ["c-1"]
        ((index, row),) = await rows_of(generation)
        assert (index, row.finish) == (1, Abort("aborted", "The request was aborted.", 499))
        engine.row("c-0", "all", finish=Stop())
        ((index, row),) = await rows_of(generation)
        assert (index, row.text) == (0, "all")
        manager.release(generation)
        assert manager.ledger.totals() == {}

    run(scenario())


def test_an_end_that_comes_in_time_is_the_only_one() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager, request(deadline=NOW + 0.01))
        manager.abort("r")
        engine.end("r", "aborted")
        manager.release(generation)
        assert len(manager.endings.due) == 0
        assert engine.sent[1:] == [AbortReq("r", "aborted"), Delivered(["r"], 0)]

    run(scenario())


def test_nobody_makes_an_end_for_a_client_that_has_left() -> None:
    """The final row comes when it comes: the rid stays taken, and nobody waits."""

    async def scenario() -> None:
        manager, engine = make()
        manager.release(await submit(manager, request(deadline=NOW + 0.01)))
        manager.abort("r")
        assert (len(manager.endings.due), manager.live_requests) == (0, 1)
        engine.end("r")
        assert (manager.live_requests, manager.ledger.totals()) == (0, {})

    run(scenario())
