"""Rows on their way to whoever waits: nothing is lost, repeated or another request's, and the text is that of the tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.failure import Failure
from millstream.messages import (
    Abort,
    AbortReq,
    BatchStrOutput,
    Delivered,
    Stop,
    TextColumns,
    TextRow,
    Timing,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.text.digest import digest_of
from tests.support.asgi import run
from tests.unit.entry.harness import make, request, submit, submit_admitted


def test_a_late_row_for_nobody_is_counted() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit(manager)
        list(await generation.receive())
        manager.release(generation)
        engine.row("r", "late")
        engine.row("never-was", "x")
        assert manager.late_rows_dropped == 2

    run(scenario())


def test_rows_that_nobody_takes_are_joined_into_one() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = engine.say(*"abcdefghij")
        generation = await submit(manager)
        ((index, row),) = await generation.receive()
        assert (index, row.text, len(row.token_ids), row.usage.completion_tokens) == (0, "abcdefghij", 10, 10)
        assert row.finish == Stop()

    run(scenario())


@given(st.lists(st.tuples(st.text(max_size=4), st.booleans()), min_size=1, max_size=30))
def test_however_the_consumer_lags_nothing_is_lost_or_repeated(rows: list[tuple[str, bool]]) -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        texts, ids = [], []
        for number, (text, take) in enumerate([*rows, ("", True)]):
            engine.row("r", text, finish=Stop() if number == len(rows) else None, ids=[number])
            if take:
                for _, row in await generation.receive():
                    texts.append(row.text)
                    ids += row.token_ids
        assert "".join(texts) == "".join(text for text, _ in rows)
        assert ids == list(range(len(rows) + 1))

    run(scenario())


@pytest.mark.parametrize(("text", "mismatches"), [("the mill", 0), ("the milk", 1), (None, 0)])
def test_text_that_is_not_what_the_ids_say_is_counted_and_logged_once(
    text: str | None, mismatches: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        for piece in ("the", " ", "mi"):
            engine.row("r", piece)
            list(await generation.receive())
        engine.row("r", "l")
        manager.handle(
            BatchStrOutput(
                [TextRow("r", 0, "l", [9], Usage(3, 5), Stop(), Timing(), digest=None if text is None else digest_of(text))]
            )
        )
        list(await generation.receive())
        manager.release(generation)
        assert manager.endings.stream_mismatches == mismatches

    run(scenario())
    assert sum("is not the text of its tokens" in record.message for record in caplog.records) == mismatches


def test_text_that_nobody_takes_is_not_compared() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        engine.row("r", "lost")
        manager.release(generation)
        manager.handle(BatchStrOutput([TextRow("r", 0, "", [], Usage(3, 1), Stop(), Timing(), digest=digest_of("lost"))]))
        assert (manager.endings.stream_mismatches, manager.live_requests) == (0, 0)

    run(scenario())


def test_rows_of_an_earlier_request_of_the_same_rid_are_nobody_s() -> None:
    async def scenario() -> None:
        manager, engine = make()
        first = await submit_admitted(manager, engine)
        manager.fail_all(Failure(503, "The scheduler has died.", "service_unavailable_error", cause="engine_error"))
        manager.release(first)
        await submit(manager)
        old = engine.requests[0].slot
        manager.handle(BatchStrOutput([TextRow("r", old, "old", [7], Usage(3, 1))]))
        manager.handle(BatchStrOutput([], [TextColumns(pack_slots([old]), pack_ids([7]), 1, ["old"])]))
        manager.handle(BatchStrOutput([TextRow("r", old, "", [], Usage(3, 2), Stop(), Timing())]))
        assert (manager.late_rows_dropped, manager.live_requests) == (3, 1)

    run(scenario())


def test_the_stamps_of_all_processes_meet_in_one_timing() -> None:
    async def scenario() -> None:
        manager, engine = make()
        generation = await submit_admitted(manager, engine)
        engine.row("r", "a")
        list(await generation.receive())
        generation.stamp_written(5.0)
        engine.row("r", "b", finish=Stop())
        list(await generation.receive())
        generation.stamp_written(6.0, last=True)
        timing = generation.states[0].obj.timing
        assert (timing.received, timing.queued, timing.decoded, timing.first_written, timing.written) == (
            1.0,
            1.0,
            3.0,
            5.0,
            6.0,
        )

    run(scenario())


def test_the_scheduler_is_told_once_a_batch_which_final_rows_have_come() -> None:
    async def scenario() -> None:
        manager, engine = make(entry=4)
        generations = [await submit_admitted(manager, engine, request(rid), rid=rid) for rid in "abc"]
        assert [sent.entry for sent in engine.requests] == [4, 4, 4]
        final = [TextRow(rid, slot, "", [], Usage(3, 1), Stop(), Timing()) for slot, rid in enumerate("ab")]
        manager.handle(BatchStrOutput([*final, TextRow("c", 2, "x", [7], Usage(3, 1))]))
        assert [message for message in engine.sent if isinstance(message, Delivered)] == [Delivered(["a", "b"], 4)]
        # what the detokenizer itself has ended is aborted first: the scheduler ends it, and then need not keep it
        manager.handle(BatchStrOutput([TextRow("c", 2, "", [], Usage(3, 1), Abort("engine_error", "no room", 503))]))
        assert engine.sent[-2:] == [AbortReq("c", "engine_error"), Delivered(["c"], 4)]
        for generation in generations:
            manager.release(generation)

    run(scenario())
