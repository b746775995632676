"""TokenizerManager: one end for each request, one abort at most, no state kept too long or dropped too early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.generation import Origin
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.errors import ContextLengthExceeded, DeadlineExceeded, DuplicateRid, EngineDeadError, RequestError
from millstream.messages import (
    Abort,
    AbortOthersReply,
    AbortOthersReq,
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    Delivered,
    GenerateReqInput,
    Received,
    ReplayReq,
    SamplingParams,
    StatsReq,
    Stop,
    TextColumns,
    TextRow,
    Timing,
    TokenizedGenerateReqInput,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.observe.ledger import Ledger
from millstream.text.digest import digest_of
from tests.support.asgi import run, until
from tests.support.engine import CONTEXT_LENGTH, TOKENIZER, FakeEngine, engine_info, hold

ORIGIN = Origin(api="test", model="tiny", prompt_param="prompt")


def make(entry: int = 0) -> tuple[TokenizerManager, FakeEngine]:
    engine = FakeEngine()
    ledger = Ledger("entry", strict=True)
    manager = TokenizerManager(
        tokenizer=TOKENIZER, to_scheduler=engine, engine=engine_info(), entry=entry, ledger=ledger, new_seed=lambda: 77
    )
    engine.handle = manager.handle
    return manager, engine


def request(rid: str = "r", **more: Any) -> GenerateReqInput:
    more = {"input_ids": [5, 6, 7]} | more if "text" not in more else more
    sampling = more.pop("sampling", SamplingParams())
    return GenerateReqInput(rid=rid, sampling=sampling, timing=Timing(received=1.0), **more)


async def submit(manager: TokenizerManager, *requests: GenerateReqInput, rid: str = "r", origin: Origin = ORIGIN) -> Any:
    return await manager.generate_request(rid, requests or (request(),), origin)


def test_a_request_is_final_before_it_is_sent() -> None:
    async def scenario() -> None:
        manager, engine = make()
        await submit(manager, request(text="hello there", add_special_tokens=False))
        (sent,) = engine.requests
        assert sent.input_ids == TOKENIZER.encode("hello there", add_special_tokens=False)
        assert sent.max_new_tokens == CONTEXT_LENGTH - len(sent.input_ids) == sent.sampling.max_new_tokens
        assert sent.sampling.seed == 77
        assert sent.timing.tokenized > 0

    run(scenario())


def test_a_given_seed_is_kept_and_a_default_limit_is_shortened_to_the_context() -> None:
    async def scenario() -> None:
        manager, engine = make()
        ids = [5] * (CONTEXT_LENGTH - 3)
        origin = Origin(api="test", model="tiny", prompt_param="prompt", default_max_new_tokens=16)
        await submit(manager, request(input_ids=ids, sampling=SamplingParams(seed=3)), origin=origin)
        assert (engine.requests[0].max_new_tokens, engine.requests[0].sampling.seed) == (3, 3)

    run(scenario())


def test_long_text_is_encoded_in_a_thread_and_gives_the_same_ids() -> None:
    async def scenario() -> None:
        manager, engine = make()
        text = "ab " * 1000
        with pytest.raises(ContextLengthExceeded) as caught:
            await submit(manager, request(text=text))
        assert str(CONTEXT_LENGTH) in caught.value.message
        assert str(len(TOKENIZER.encode(text))) in caught.value.message
        assert engine.sent == []
        assert manager.live_requests == 0

    run(scenario())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"input_ids": []}, RequestError, id="empty"),
        pytest.param({"text": "", "add_special_tokens": False}, RequestError, id="empty-text"),
        pytest.param({"input_ids": [10**30]}, RequestError, id="huge-id"),
        pytest.param({"input_ids": [-1]}, RequestError, id="negative-id"),
        pytest.param({"input_ids": [5] * CONTEXT_LENGTH}, ContextLengthExceeded, id="full"),
        pytest.param({"sampling": SamplingParams(max_new_tokens=CONTEXT_LENGTH)}, ContextLengthExceeded, id="asks-too-much"),
        pytest.param({"sampling": SamplingParams(min_new_tokens=CONTEXT_LENGTH)}, RequestError, id="min-beyond-the-room"),
        pytest.param({"sampling": SamplingParams(temperature=-1)}, RequestError, id="sampling"),
        pytest.param({"text": "x" * (CONTEXT_LENGTH * 256 + 1)}, ContextLengthExceeded, id="hopelessly-long"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent_and_leaves_nothing(change: Any, error: type[Exception]) -> None:
    async def scenario() -> None:
        manager, engine = make()
        with pytest.raises(error):
            await submit(manager, request("a"), request("b", **change))
        assert engine.sent == []
        assert manager.live_requests == 0
        await submit(manager)  # the rid is free again

    run(scenario())


def test_a_duplicate_of_a_live_rid_is_refused_and_the_first_is_unharmed() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        first = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        with pytest.raises(DuplicateRid):
            await submit(manager)
        with pytest.raises(DuplicateRid):  # the rid of a call with several requests is taken too
            await submit(manager, request("r-0"), request("r-1"))
        engine.say("hi")(engine.requests[0])
        generation = await first
        ((_, row),) = await generation.receive()
        assert (row.text, row.finish) == ("hi", Stop())
        manager.release(generation)
        assert engine.aborts == []
        assert manager.live_requests == 0

    run(scenario())


def test_a_rejection_is_raised_with_its_facts_and_the_accepted_ones_are_aborted() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        task = asyncio.create_task(submit(manager, request("r-0"), request("r-1")))
        await engine.wait_sent(TokenizedGenerateReqInput, 2)
        engine.accept("r-0")
        engine.reject("r-1")
        with pytest.raises(RequestFailed) as caught:
            await task
        assert (caught.value.failure.status, caught.value.failure.retry_after_s) == (429, 1)
        assert [abort.rid for abort in engine.aborts] == ["r-0"]
        assert manager.live_requests == 1  # until its final row
        engine.end("r-0", "aborted")
        assert manager.live_requests == 0

    run(scenario())


def test_rows_that_overtake_the_verdict_count_as_one() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.row(sent.rid, "fast", finish=Stop())
        generation = await submit(manager)
        assert [row.text for _, row in await generation.receive()] == ["fast"]
        manager.release(generation)
        # the rid is used again before the verdict on the first comes: it must not pass for the second's
        engine.answer = hold
        second = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput, 2)
        engine.handle(AdmissionOutput(accepted=[engine.requests[0].slot]))
        engine.reject("r")
        with pytest.raises(RequestFailed):
            await second

    run(scenario())


def test_a_rid_whose_rows_overtake_the_verdict_again_and_again_waits_for_its_own_verdict() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.row(sent.rid, "fast", finish=Stop())
        for _ in range(2):
            manager.release(await submit(manager))
        assert manager.ledger.totals() == {}
        engine.answer = hold
        third = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput, 3)
        engine.handle(AdmissionOutput(accepted=[sent.slot for sent in engine.requests[:2]]))
        assert not manager._owners["r"][0].accepted
        engine.reject("r")
        with pytest.raises(RequestFailed):
            await third
        assert manager.ledger.totals() == {}

    run(scenario())


def test_a_request_that_comes_too_late_is_not_even_tokenised() -> None:
    async def scenario() -> None:
        manager, engine = make()
        with pytest.raises(DeadlineExceeded, match=r"within 1\.5 s"):
            await submit(manager, request(text="hello", deadline=2.5))
        assert (engine.sent, manager.live_requests) == ([], 0)

    run(scenario())


def test_cancelled_before_dispatch_leaves_locally() -> None:
    async def scenario() -> None:
        manager, engine = make()
        task = asyncio.create_task(submit(manager, request(text="word " * 1000)))
        await until(lambda: manager.live_requests > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.sent == []
        assert manager.live_requests == 0

    run(scenario())


def test_cancelled_while_waiting_for_admission_aborts_once_and_keeps_the_state_until_the_final_row() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        task = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        manager.abort("r")
        manager.abort_all()
        assert engine.aborts == [AbortReq("r", "client_gone")]
        engine.accept("r")
        engine.row("r", "late")
        assert manager.live_requests == 1
        engine.end("r")
        assert manager.live_requests == 0
        assert manager.late_rows_dropped == 0

    run(scenario())


def test_after_a_fault_of_ours_the_rid_stays_taken_until_the_final_row(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        waiting = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        engine.accept("r")
        generation = await waiting
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
        engine.answer = hold
        second = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput, 2)
        assert manager.ledger.totals() == {"state": 1, "generation": 1, "reader": 2}
        manager.release(first)
        assert manager.ledger.totals() == {"state": 1, "generation": 1, "reader": 1}
        engine.accept("r")
        engine.row("r", "", finish=Stop())
        manager.release(await second)
        assert manager.ledger.totals() == {}

    run(scenario())


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
        engine.answer = lambda sent: engine.accept(sent.rid)
        generation = await submit(manager)
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
        engine.answer = hold
        waiting = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        engine.accept("r")
        generation = await waiting
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
        assert manager.stream_mismatches == mismatches

    run(scenario())
    assert sum("is not the text of its tokens" in record.message for record in caplog.records) == mismatches


def test_text_that_nobody_takes_is_not_compared() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        waiting = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        engine.accept("r")
        generation = await waiting
        engine.row("r", "lost")
        manager.release(generation)
        manager.handle(BatchStrOutput([TextRow("r", 0, "", [], Usage(3, 1), Stop(), Timing(), digest=digest_of("lost"))]))
        assert (manager.stream_mismatches, manager.live_requests) == (0, 0)

    run(scenario())


def test_an_end_by_the_detokenizer_is_told_to_the_scheduler() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = hold
        waiting = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput)
        engine.accept("r")
        generation = await waiting
        manager.handle(BatchStrOutput([TextRow("r", 0, "", [], Usage(3, 1), Abort("engine_error", "no room", 503))]))
        ((_, row),) = await generation.receive()
        manager.release(generation)
        assert row.finish == Abort("engine_error", "no room", 503)
        assert (engine.aborts, manager.live_requests) == ([AbortReq("r", "engine_error")], 0)

    run(scenario())


def test_abort_by_rid_is_exact_and_reaches_every_request_of_a_call() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.accept(sent.rid)
        await submit(manager, request("r1"), rid="r1")
        await submit(manager, request("r10"), rid="r10")
        await submit(manager, request("c-0"), request("c-1"), rid="c")
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
        engine.answer = lambda sent: engine.accept(sent.rid)
        running = await submit(manager, request("run"), rid="run")
        engine.answer = hold
        waiting = asyncio.create_task(submit(manager))
        await engine.wait_sent(TokenizedGenerateReqInput, 2)
        manager.fail_all(Failure(503, "dead", "service_unavailable_error"))
        with pytest.raises(RequestFailed):
            list(await running.receive())
        with pytest.raises(RequestFailed):
            await waiting
        assert manager.live_requests == 0
        assert engine.aborts == []
        manager.release(running)

    run(scenario())


def test_stats_come_back_or_time_out() -> None:
    async def scenario() -> None:
        manager, engine = make()
        assert (await manager.questions.stats()).pages_free == 60
        engine.handle = lambda message: None
        with pytest.raises(EngineDeadError):
            await manager.questions.stats(timeout_s=0.01)

    run(scenario())


def test_rows_of_an_earlier_request_of_the_same_rid_are_nobody_s() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.accept(sent.rid)
        first = await submit(manager)
        manager.fail_all(Failure(503, "The scheduler has died.", "service_unavailable_error", cause="engine_error"))
        manager.release(first)
        await submit(manager)
        old = engine.requests[0].slot
        manager.handle(BatchStrOutput([TextRow("r", old, "old", [7], Usage(3, 1))]))
        manager.handle(BatchStrOutput([], [TextColumns(pack_slots([old]), pack_ids([7]), 1, ["old"])]))
        manager.handle(BatchStrOutput([TextRow("r", old, "", [], Usage(3, 2), Stop(), Timing())]))
        assert (manager.late_rows_dropped, manager.live_requests) == (3, 1)

    run(scenario())


def test_idle_is_waited_for_and_given_up() -> None:
    async def scenario() -> None:
        manager, engine = make()
        assert await manager.wait_idle(1)
        engine.answer = lambda sent: engine.accept(sent.rid)
        generation = await submit(manager)
        assert not await manager.wait_idle(0.01)
        engine.row("r", "", finish=Stop())
        assert not await manager.wait_idle(0.01)  # its client has not got all of it
        waiting = asyncio.create_task(manager.wait_idle(10))
        await asyncio.sleep(0)
        manager.release(generation)
        assert await waiting

    run(scenario())


def test_the_stamps_of_all_processes_meet_in_one_timing() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.accept(sent.rid)
        generation = await submit(manager)
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
        engine.answer = lambda sent: engine.accept(sent.rid)
        generations = [await submit(manager, request(rid), rid=rid) for rid in "abc"]
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


def test_a_replay_is_asked_for_with_what_has_come_taken_or_not() -> None:
    async def scenario() -> None:
        manager, engine = make(entry=4)
        manager.ask_replay(77)
        assert engine.sent == []  # nothing is live
        engine.answer = lambda sent: engine.accept(sent.rid)
        taken, waiting, new = [await submit(manager, request(rid), rid=rid) for rid in ("taken", "waiting", "new")]
        for number in range(70):  # more pieces than the digest keeps
            engine.row("taken", f"{number:03d}")
            list(await taken.receive())
        engine.row("waiting", "水")
        list(await waiting.receive())
        for text in ("a", "", "bc"):
            engine.row("waiting", text)
        early = asyncio.create_task(submit(manager, request("early", text="word " * 1000), rid="early"))
        await until(lambda: manager.live_requests == 4)
        manager.ask_replay(77)
        received = [Received("taken", 70, 210), Received("waiting", 4, 4), Received("new", 0, 0)]
        assert engine.sent[-1] == ReplayReq(received, 77, 4)  # without the one that was not sent yet
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        for generation in (taken, waiting, new):
            manager.release(generation)

    run(scenario())


def test_a_dead_scheduler_owes_no_verdicts() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.row(sent.rid, "fast", finish=Stop())
        manager.release(await submit(manager))
        manager.fail_all(Failure(503, "dead", "service_unavailable_error"))
        engine.answer = lambda sent: engine.accept(sent.rid)
        manager.release(await submit(manager))  # the new scheduler's verdict on the same rid is not taken for the old one's

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
