"""Service: what the deaths and returns of the engine's processes mean to requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.failure import RequestFailed
from millstream.entry.generation import Generation, Origin
from millstream.entry.service import Service
from millstream.errors import EngineDeadError
from millstream.messages import (
    EngineInfo,
    GenerateReqInput,
    ProcessState,
    ReplayReq,
    SamplingParams,
    ServerState,
    StatsReq,
    Timing,
)
from tests.support.asgi import run
from tests.support.engine import Entry, engine_info, state


def view(*, scheduler: tuple[int, Any] = (2, "READY"), detokenizer: tuple[int, Any] = (1, "READY")) -> ServerState:
    """The supervisor's view: pid and state of each."""
    processes = {"entry-0": (9, "READY"), "scheduler": scheduler, "detokenizer": detokenizer}
    return ServerState({name: ProcessState(pid, phase) for name, (pid, phase) in processes.items()}, engine_info())


async def open_request(entry: Entry) -> Generation:
    entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
    request = GenerateReqInput(rid="r", input_ids=[5], sampling=SamplingParams(), timing=Timing())
    return await entry.manager.generate_request("r", [request], Origin(api="test", model="tiny", prompt_param="prompt"))


def test_a_new_detokenizer_is_asked_to_go_on_after_all_that_the_old_one_sent_was_read() -> None:
    async def scenario() -> None:
        entry = Entry()
        read: list[int] = []

        def read_all() -> None:
            read.append(len(entry.engine.sent))
            entry.engine.row("r", "last words")

        entry.service._read_all = read_all
        generation = await open_request(entry)
        entry.service.update(view())
        for detokenizer in [(1, "FAILED"), (4, "STARTING")]:
            entry.service.update(view(detokenizer=detokenizer))
            with pytest.raises(EngineDeadError):
                entry.service.check_ready()
            entry.service.check_alive()
        assert entry.manager.live_requests == 1
        assert read == []
        entry.service.update(view(detokenizer=(4, "READY")))
        entry.service.check_ready()
        (asked,) = [message for message in entry.engine.sent if isinstance(message, ReplayReq)]
        assert read == [1]  # before it asked
        assert (asked.detokenizer_pid, asked.received[0].num_chars) == (4, len("last words"))
        entry.service.update(view(detokenizer=(4, "READY")))  # some other change
        assert sum(isinstance(message, ReplayReq) for message in entry.engine.sent) == 1
        entry.manager.release(generation)

    run(scenario())


def test_a_dead_scheduler_ends_requests_and_a_new_one_takes_new_ones() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.service.update(view())
        generation = await open_request(entry)
        entry.service.update(view(scheduler=(2, "FAILED")))
        with pytest.raises(RequestFailed) as caught:
            list(await generation.receive())
        assert (caught.value.failure.status, caught.value.failure.code) == (503, "engine_error")
        entry.manager.release(generation)
        with pytest.raises(EngineDeadError, match="scheduler process is FAILED"):
            entry.service.check_ready()
        entry.service.update(view(scheduler=(5, "READY")))
        entry.manager.release(await open_request(entry))
        assert not any(isinstance(message, ReplayReq) for message in entry.engine.sent)

    run(scenario())


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_questions_to_the_dead_are_not_waited_for(victim: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.handle = lambda message: None
        asked = asyncio.create_task(entry.manager.questions.stats())
        await entry.engine.wait_sent(StatsReq)
        entry.service.update(state(**{victim: "FAILED"}))
        with pytest.raises(EngineDeadError):
            await asked

    run(scenario())


def test_a_successor_is_alive_before_it_has_seen_everything_ready_and_a_first_worker_is_not() -> None:
    engine: EngineInfo = engine_info()
    for has_started in (True, False):
        service = Service(config=ServerConfig(), to_scheduler=None, has_started=has_started)  # type: ignore[arg-type]
        service.update(state(engine, scheduler="FAILED"))
        if has_started:
            service.check_alive()
        else:
            with pytest.raises(EngineDeadError):
                service.check_alive()
