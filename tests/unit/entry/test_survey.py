"""Any entry worker speaks for the whole server: it asks the others, and does not guess what it is not told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.entry import questions
from millstream.entry.survey import survey
from millstream.errors import EngineDeadError
from millstream.messages import GenerateReqInput, LedgerQuery, SamplingParams, Timing, WorkerReply, WorkerReq
from tests.support.asgi import get, run
from tests.support.engine import Entry, engine_info, state
from tests.unit.entry.harness import ORIGIN


class Ways:
    """Stands in for `EntryChannels`: what is sent to a worker goes to `deliver` in the loop's next turn."""

    def __init__(self) -> None:
        self.deliver: dict[int, Callable[[Any], None]] = {}
        self.forgotten: list[int] = []

    def __call__(self, number: int) -> Any:
        return _Way(self.deliver.get(number))

    def forget(self, number: int) -> None:
        self.forgotten.append(number)


class _Way:
    def __init__(self, deliver: Callable[[Any], None] | None) -> None:
        self._deliver = deliver

    def send(self, message: Any) -> int:
        if self._deliver is None:
            return 0  # nobody reads there
        asyncio.get_running_loop().call_soon(self._deliver, message)
        return 1


def workers(**phases: Any) -> tuple[Entry, Entry, Ways]:
    """Two workers of one server, numbers 0 and 3."""
    ways = Ways()
    pair = []
    for number in (0, 3):
        entry = Entry(number=number)
        entry.service._to_workers = ways  # type: ignore[assignment]
        entry.service.update(state(engine_info(), **{"entry-3": "READY", **phases}))
        entry.engine.answer = lambda sent, entry=entry: entry.engine.accept(sent.rid)  # type: ignore[misc]
        pair.append(entry)
        ways.deliver[number] = lambda message, entry=entry: (  # type: ignore[misc]
            entry.service.answer_worker(message) if isinstance(message, WorkerReq) else entry.manager.handle(message)
        )
    return pair[0], pair[1], ways


async def open_requests(entry: Entry, *rids: str) -> None:
    for rid in rids:
        obj = GenerateReqInput(rid=rid, input_ids=[5], sampling=SamplingParams(), timing=Timing(received=1.0))
        await entry.manager.generate_request(rid, [obj], ORIGIN)


def test_counts_and_books_are_those_of_all_workers_by_name() -> None:
    async def scenario() -> None:
        here, there, _ = workers()
        await open_requests(here, "a")
        await open_requests(there, "b", "c")
        there.manager.late_rows_dropped = 7
        there.manager.endings.stream_mismatches = 1
        there.manager.ledger.mismatches = 2
        info = (await get(here.app, "/server_info")).body
        assert info["entry_worker"] == 0
        assert info["live_requests_by_process"]["entry"] == 3
        assert {name: worker["live_requests"] for name, worker in info["entry_workers"].items()} == {"entry-0": 1, "entry-3": 2}
        assert (info["late_rows_dropped"], info["stream_mismatch_total"], info["ledger_mismatch_total"]) == (7, 1, 2)
        found = (await get(here.app, "/debug/ledger")).body
        assert (found["totals"]["state"], found["mismatches"]) == (3, 2)
        assert [(each["rid"], each["process"]) for each in found["held"] if each["kind"] == "state"] == [
            ("a", "entry-0"), ("b", "entry-3"), ("c", "entry-3"),
        ]  # fmt: skip

    run(scenario())


def test_a_worker_reads_all_that_was_sent_to_it_before_it_answers() -> None:
    async def scenario() -> None:
        here, there, _ = workers()
        await open_requests(there, "b")
        there.service._read_all = lambda: there.engine.end("b")
        found = await survey(here.service)
        assert [report.live_requests for report in found.reports] == [0, 0]

    run(scenario())


@pytest.mark.parametrize("silence", ["gone", "mute"])
def test_a_worker_that_does_not_answer_is_shown_as_such_and_its_books_are_not_guessed(
    silence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WORKER_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        here, _, ways = workers()
        if silence == "gone":
            del ways.deliver[3]
        else:
            ways.deliver[3] = lambda message: None
        info = await get(here.app, "/server_info")
        assert (info.status, info.body["entry_workers"]["entry-3"]) == (200, None)
        answer = await get(here.app, "/debug/ledger")
        assert (answer.status, answer.body["error"]["message"]) == (503, "The entry-3 process does not answer.")
        with pytest.raises(EngineDeadError):
            list((await survey(here.service, LedgerQuery())).books())

    run(scenario())


@pytest.mark.parametrize("phase", ["STARTING", "FAILED"])
def test_a_worker_that_cannot_answer_is_not_asked(phase: str) -> None:
    async def scenario() -> None:
        here, _, ways = workers(**{"entry-3": phase})
        ways.deliver.clear()
        assert list((await survey(here.service)).workers) == [0]

    run(scenario())


def test_the_way_to_a_worker_that_was_replaced_is_forgotten() -> None:
    async def scenario() -> None:
        here, _, ways = workers()
        here.service.update(state(engine_info(), **{"entry-4": "READY"}))
        assert ways.forgotten == [3]
        late = WorkerReply(1, here.manager.report())
        here.manager.handle(late)  # nobody waits for it

    run(scenario())
