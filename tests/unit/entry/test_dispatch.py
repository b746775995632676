"""From a call to requests on their way: final before they are sent, all or none, one verdict each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.generation import Generation, Origin
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.errors import ContextLengthExceeded, DeadlineExceeded, DuplicateRid, RequestError
from millstream.messages import (
    AbortReq,
    AdmissionOutput,
    SamplingParams,
    Stop,
)
from millstream.messages.details import LogprobParams
from millstream.messages.finish import end_cause
from tests.support.asgi import run, until
from tests.support.engine import CONTEXT_LENGTH, TOKENIZER
from tests.unit.entry.harness import make, request, submit, submit_admitted, submit_held


def hold_tokenizing(manager: TokenizerManager) -> asyncio.Event:
    """Calls are tokenised once this is set."""
    gate = asyncio.Event()
    tokenize = manager._call_tokenizer.tokenize

    async def held(generation: Generation) -> Any:
        await generation.unless_ended(gate.wait)
        return await tokenize(generation)

    manager._call_tokenizer.tokenize = held  # type: ignore[method-assign]
    return gate


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
        first = await submit_held(manager, engine)
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


def test_that_a_rid_is_taken_is_said_before_what_else_is_wrong() -> None:
    async def scenario() -> None:
        manager, engine = make()
        first = await submit_held(manager, engine)
        with pytest.raises(DuplicateRid):
            await submit(manager, request(sampling=SamplingParams(temperature=-1.0)))
        engine.say("hi")(engine.requests[0])
        manager.release(await first)

    run(scenario())


def test_a_rejection_is_raised_with_its_facts_and_the_accepted_ones_are_aborted() -> None:
    async def scenario() -> None:
        manager, engine = make()
        task = await submit_held(manager, engine, request("r-0"), request("r-1"))
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
        second = await submit_held(manager, engine)
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
        third = await submit_held(manager, engine)
        engine.handle(AdmissionOutput(accepted=[sent.slot for sent in engine.requests[:2]]))
        assert not manager.registry.by_rid["r"][0].accepted
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


def test_one_of_several_is_aborted_before_they_are_sent_and_the_others_go_on() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.accept(sent.rid)
        gate = hold_tokenizing(manager)
        task = asyncio.create_task(submit(manager, request("c-0"), request("c-1"), rid="c"))
        await until(lambda: manager.live_requests > 0)
        assert engine.sent == []
        assert manager.abort("c-0") == manager.abort("c-0") == ["c-0"]
        gate.set()
        generation = await task
        assert engine.aborts == [AbortReq("c-0", "aborted")]
        assert [sent.rid for sent in engine.requests] == ["c-0", "c-1"]
        engine.end("c-0", "aborted")
        engine.row("c-1", "x", finish=Stop())
        ends = {row.rid: row.finish for _, row in await generation.receive()}
        assert (end_cause(ends["c-0"]), end_cause(ends["c-1"])) == ("aborted", "stop")
        manager.release(generation)
        assert manager.live_requests == 0

    run(scenario())


def test_all_of_several_are_aborted_before_they_are_sent() -> None:
    async def scenario() -> None:
        manager, engine = make()
        hold_tokenizing(manager)
        task = asyncio.create_task(submit(manager, request("c-0"), request("c-1"), rid="c"))
        await until(lambda: manager.live_requests > 0)
        assert manager.abort("c") == ["c-0", "c-1"]
        with pytest.raises(RequestFailed) as caught:
            await task
        assert caught.value.failure.status == 499
        assert (engine.sent, manager.live_requests) == ([], 0)

    run(scenario())


def test_cancelled_while_waiting_for_admission_aborts_once_and_keeps_the_state_until_the_final_row() -> None:
    async def scenario() -> None:
        manager, engine = make()
        task = await submit_held(manager, engine)
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


def test_a_dead_scheduler_owes_no_verdicts() -> None:
    async def scenario() -> None:
        manager, engine = make()
        engine.answer = lambda sent: engine.row(sent.rid, "fast", finish=Stop())
        manager.release(await submit(manager))
        manager.fail_all(Failure(503, "dead", "service_unavailable_error"))
        # the new scheduler's verdict on the same rid is not taken for the old one's
        manager.release(await submit_admitted(manager, engine))

    run(scenario())


def test_log_probabilities_that_are_asked_for_go_along() -> None:
    async def scenario() -> None:
        manager, engine = make()
        params = LogprobParams(top=3, token_ids=(1,), prompt_start=2)
        await submit(manager, request(input_ids=[5, 6], logprobs=params))
        assert engine.requests[0].logprobs == params

    run(scenario())


@pytest.mark.parametrize(
    ("params", "facts", "param"),
    [
        pytest.param(LogprobParams(), {"has_logprobs": False}, "logprobs", id="the executor has none"),
        pytest.param(LogprobParams(top=129), {}, "top_logprobs", id="too many alternatives"),
        pytest.param(LogprobParams(token_ids=(-1,)), {}, "token_ids_logprob", id="a negative id"),
        pytest.param(LogprobParams(prompt_start=3), {}, "logprob_start_len", id="a start behind the prompt"),
        pytest.param(LogprobParams(top=128, token_ids=(7,) * 1024), {"context_length": 1 << 20}, "logprobs", id="too much"),
    ],
)
def test_log_probabilities_that_cannot_be_told_are_refused_before_anything_is_sent(
    params: LogprobParams, facts: dict[str, Any], param: str
) -> None:
    async def scenario() -> None:
        manager, engine = make(**facts)
        with pytest.raises(RequestError) as caught:
            await submit(manager, request("r-0"), request("r-1", input_ids=[5, 6], logprobs=params))
        assert caught.value.param == param
        assert (engine.sent, manager.live_requests) == ([], 0)

    run(scenario())


def test_the_prompts_of_a_call_are_told_of_within_one_limit() -> None:
    async def scenario() -> None:
        manager, engine = make(context_length=1 << 20)
        ids, params = [5] * 500, LogprobParams(top=128, token_ids=(7,) * 200, prompt_start=0)
        short = SamplingParams(max_new_tokens=1)
        requests = [request(f"r-{i}", input_ids=ids, logprobs=params, sampling=short) for i in range(5)]
        await submit(manager, *requests[:4])
        engine.requests.clear()
        with pytest.raises(RequestError, match="1048576") as caught:
            await submit(manager, *requests, rid="other")
        assert caught.value.param == "logprobs"

    run(scenario())
