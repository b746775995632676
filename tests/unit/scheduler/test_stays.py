"""What a request waited for in the scheduler, and how its prompt was computed, comes with its final row."""

from __future__ import annotations

import msgspec
import pytest

from millstream.messages import Journey, JourneysReply, JourneysReq
from millstream.messages.journey import LACKS, MAX_CHUNKS, MAX_WAITS, Wait
from tests.unit.scheduler.harness import Desk, assert_nothing_held, desk

A, B = list(range(300, 340)), list(range(400, 440))


def journey(at: Desk, rid: str) -> Journey:
    timing = at.rows(rid)[-1].timing
    assert timing is not None
    return msgspec.msgpack.decode(timing.journey, type=Journey)


def lacked(wait: Wait) -> set[str]:
    return {lack for lack, seconds in zip(LACKS, wait.lacked, strict=True) if seconds}


def test_a_request_alone_waits_for_nothing_and_computes_its_prompt_in_one_step() -> None:
    at, _ = desk()
    at.submit("r", A, max_new=3)
    at.run()
    made = journey(at, "r")
    (wait,) = made.waits
    assert (wait.place, wait.why, wait.ahead, lacked(wait)) == ("waiting", "arrived", 0, set())
    assert [(chunk.num_tokens, chunk.steps) for chunk in made.chunks] == [(40, 1)]
    assert made.chunks[0].start < made.chunks[0].end


def test_a_queue_says_how_many_were_ahead_and_that_the_batch_was_full() -> None:
    at, _ = desk(max_running_requests=1)
    for number in range(3):
        at.submit(f"r{number}", [5 + number, 6, 7], max_new=4, ignore_eos=True)
    at.run()
    (wait,) = journey(at, "r2").waits
    assert (wait.ahead, lacked(wait)) == (2, {"slots"})
    assert wait.seconds == wait.end - wait.start > journey(at, "r1").waits[0].seconds


def test_a_pool_that_is_too_small_for_both_is_a_page_shortage() -> None:
    at, _ = desk(num_pages=14, page_size=4)
    at.submit("first", A, max_new=8, ignore_eos=True)
    at.step()
    at.submit("second", B, max_new=2, ignore_eos=True)
    at.run()
    (wait,) = journey(at, "second").waits
    assert (wait.ahead, lacked(wait)) == (0, {"pages"})


def test_another_prompt_in_the_making_takes_the_tokens_of_the_step() -> None:
    at, _ = desk(chunked_prefill_size=10)
    at.submit("first", A, max_new=1)
    at.step()
    at.submit("second", B, max_new=1)
    at.run()
    (wait,) = journey(at, "second").waits
    assert "tokens" in lacked(wait)
    assert [chunk.num_tokens for chunk in journey(at, "first").chunks] == [10, 10, 10, 10]


def test_who_has_the_same_prefix_waits_for_it() -> None:
    at, _ = desk(chunked_prefill_size=30)
    at.submit("first", A, max_new=1)
    at.submit("second", A, max_new=1)
    at.run()
    made = journey(at, "second")
    assert "prefix" in lacked(made.waits[0])
    assert made.cache is not None
    assert made.cache.reason == "page_boundary"


def test_a_retraction_is_a_wait_of_its_own_and_its_tokens_are_computed_again() -> None:
    at, _ = desk(num_pages=12, page_size=4)
    at.submit("old", A[:20], max_new=20, ignore_eos=True)
    at.submit("new", B[:16], max_new=20, ignore_eos=True)
    at.run()
    assert at.rows("new")[-1].usage.retractions == 1
    made = journey(at, "new")
    assert [(wait.place, wait.why) for wait in made.waits] == [("waiting", "arrived"), ("waiting", "retracted")]
    assert made.waits[1].seconds > 0
    assert len(made.chunks) == 2
    assert made.cache is not None
    assert made.cache.reason == "nothing_cached"


def test_a_client_that_does_not_read_makes_its_request_wait() -> None:
    at, _ = desk()
    at.submit("r", A, max_new=9, ignore_eos=True)
    at.step()
    at.pause("r")
    at.step()
    at.resume("r")
    at.run()
    assert [(wait.place, wait.why) for wait in journey(at, "r").waits] == [("waiting", "arrived"), ("paused", "paused")]


def test_an_abort_in_the_queue_ends_the_wait() -> None:
    at, _ = desk(max_running_requests=1)
    at.submit("first", A, max_new=4, ignore_eos=True)
    at.submit("second", B)
    at.step()
    at.abort("second")
    at.run()
    (wait,) = journey(at, "second").waits
    assert lacked(wait) == {"slots"}
    assert journey(at, "second").cache is None
    assert_nothing_held(at)


def test_what_is_listed_is_bounded_and_nothing_of_the_time_is_lost() -> None:
    at, _ = desk(chunked_prefill_size=9, num_pages=300)
    at.submit("r", list(range(300, 1000)), max_new=1)
    at.step()
    for _ in range(2 * MAX_WAITS):
        at.pause("r")
        at.step()
        at.resume("r")
    at.run()
    made = journey(at, "r")
    assert len(made.chunks) == MAX_CHUNKS
    assert sum(chunk.num_tokens for chunk in made.chunks) == 700
    assert made.chunks[-1].steps == 78 - MAX_CHUNKS + 1
    assert len(made.waits) == MAX_WAITS
    assert sum(wait.times for wait in made.waits) == 1 + 2 * MAX_WAITS
    assert sum(wait.seconds for wait in made.waits[1:]) == pytest.approx(2 * MAX_WAITS * made.waits[1].seconds)


def test_live_requests_are_told_as_they_are() -> None:
    at, _ = desk(max_running_requests=2)
    for rid in ("run", "sleep", "wait"):
        at.submit(rid, A, max_new=20, ignore_eos=True)
        at.step()
    at.step()
    at.pause("sleep")
    at.pause("wait")
    at.resume("wait")
    at.scheduler.handle(JourneysReq(7, entry=2))
    reply = at.to_entry.sent[-1]
    assert isinstance(reply, JourneysReply)
    assert (reply.id, at.asked_entries[-1]) == (7, 2)
    assert {request.rid: request.state for request in reply.requests} == {"run": "running", "sleep": "paused", "wait": "queued"}
    told = msgspec.msgpack.decode(reply.requests[2].timing.journey, type=Journey)
    assert [wait.why for wait in told.waits] == ["arrived", "paused", "resumed"]
    assert reply.requests[0].usage.completion_tokens > 0
    at.resume("sleep")
    at.run()
    assert_nothing_held(at)
