"""GET /health_generate: a token is proof of life, whoever it is for; being busy or full is no sign of death."""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import patch

import pytest

from millstream.entry.native import health
from millstream.errors import EngineDeadError
from millstream.messages import Length, StatsReq, TokenizedGenerateReqInput
from tests.support.asgi import Call, Response, post, run, until
from tests.support.engine import Entry, engine_info, hold, state


def ask(entry: Entry, query: bytes = b"timeout=30") -> Call:
    return Call(entry.app, "/health_generate", b"", method="GET", query=query)


async def probe(entry: Entry, query: bytes = b"timeout=30") -> Response:
    return await ask(entry, query).response()


def test_an_idle_server_shows_a_token(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = entry.engine.say("x", finish=Length(1))
        with caplog.at_level(logging.INFO, logger="millstream.request"):
            assert (await probe(entry)).status == 200
            await until(lambda: entry.manager.live_requests == 0)
        (sent,) = entry.engine.requests
        assert (sent.max_new_tokens, sent.is_probe, sent.rid.startswith("HEALTH_CHECK_")) == (1, True, True)
        assert caplog.records == []  # nobody asked for it
        assert (await probe(entry)).status == 200
        assert len(entry.engine.requests) == 1  # that token is fresh

    run(scenario())


def test_a_token_of_anybody_is_proof_and_no_other_is_made() -> None:
    async def scenario() -> None:
        entry = Entry()
        await post(entry.app, "/generate", {"text": "a"})
        assert (await probe(entry)).status == 200
        assert len(entry.engine.requests) == 1

    run(scenario())


def test_a_token_of_anybody_ends_the_wait_for_the_probes_own() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        call = Call(entry.app, "/generate", {"text": "a", "rid": "r"})
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        asked = ask(entry)
        await entry.engine.wait_sent(TokenizedGenerateReqInput, 2)
        entry.engine.row("r", "x", finish=Length(1))
        assert (await asked.response()).status == 200
        assert [abort.rid for abort in entry.engine.aborts] == [entry.engine.requests[1].rid]  # it is not needed any more
        await call.response()

    run(scenario())


def test_steps_of_the_engine_are_proof_while_it_reads_long_prompts() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        with patch.object(health, "LOOK_EVERY_S", 0.001):
            asked = ask(entry)
            await entry.engine.wait_sent(StatsReq, 3)
            assert not asked.task.done()  # it answers, and computes nothing
            entry.engine.num_steps += 1
            assert (await asked.response()).status == 200

    run(scenario())


def test_a_full_server_is_not_dead() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.reject(sent.rid)
        with patch.object(health, "LOOK_EVERY_S", 0.001):
            asked = ask(entry)
            await entry.engine.wait_sent(StatsReq, 2)
            entry.engine.num_steps += 1
            assert (await asked.response()).status == 200

    run(scenario())


def test_without_a_sign_of_life_it_is_503_after_the_timeout_and_probes_share_one_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        entry.engine.handle = lambda message: None  # nothing comes back at all
        answers = await asyncio.gather(*(probe(entry, b"timeout=0.02") for _ in range(5)))
        assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "no_sign_of_life")}
        assert len(entry.engine.requests) == 1
        entry.engine.handle = entry.manager.handle
        asked = ask(entry)
        entry.engine.say("x", finish=Length(1))(entry.engine.requests[0])
        assert (await asked.response()).status == 200
        assert len(entry.engine.requests) == 1

    run(scenario())


def test_a_generation_that_fails_is_503_with_its_reason() -> None:
    async def scenario() -> None:
        entry = Entry()

        def fail(sent: TokenizedGenerateReqInput) -> None:
            entry.engine.accept(sent.rid)
            entry.engine.end(sent.rid, "engine_error", "the kernel is broken")

        entry.engine.answer = fail
        response = await probe(entry)
        assert response.status == 503
        assert "the kernel is broken" in response.error["message"]

    run(scenario())


def test_a_probe_that_somebody_aborted_was_answered_all_the_same() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        asked = ask(entry)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        await post(entry.app, "/abort_request", {"abort_all": True})
        entry.engine.end(entry.engine.requests[0].rid, "aborted")
        assert (await asked.response()).status == 200

    run(scenario())


def test_the_death_of_the_scheduler_ends_the_wait() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        asked = ask(entry)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        entry.service.update(state(engine_info(), scheduler="FAILED"))
        assert (await asked.response()).status == 503
        assert (await probe(entry)).status == EngineDeadError.status

    run(scenario())


def test_a_client_that_leaves_ends_only_its_own_wait() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.answer = hold
        first, second = ask(entry), ask(entry)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        first.disconnect()
        await first.task
        entry.engine.say("x", finish=Length(1))(entry.engine.requests[0])
        assert (await second.response()).status == 200

    run(scenario())
