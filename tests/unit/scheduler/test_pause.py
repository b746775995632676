"""Paused requests: nothing is made of them, nobody waits for them, and what they come to is what it would have been."""

from __future__ import annotations

import pytest

from millstream.messages import Abort, AbortReq, Length
from tests.unit.scheduler.harness import CheckingExecutor, Desk

PROMPT = list(range(10, 20))


def desk(*, num_pages: int = 64, page_size: int = 4, share_prefixes: bool = True, **limits: int) -> Desk:
    return Desk(CheckingExecutor(num_pages=num_pages, page_size=page_size), share_prefixes=share_prefixes, **limits)


def undisturbed(max_new: int, prompt: list[int] = PROMPT) -> list[int]:
    """The tokens of a request that is alone and never paused."""
    at = desk()
    at.submit("r", prompt, max_new=max_new, ignore_eos=True)
    at.run()
    return at.tokens("r")


def counts(at: Desk) -> tuple[int, int, int]:
    stats = at.stats()
    return stats.running, stats.waiting, stats.paused


def pages_held(at: Desk) -> int:
    return at.pool.num_pages - at.pool.available


def test_a_paused_request_makes_nothing_and_keeps_its_pages() -> None:
    at = desk()
    at.submit("r", PROMPT, max_new=20, ignore_eos=True)
    for _ in range(3):
        at.step()
    at.pause("r")
    held = pages_held(at)
    assert not at.scheduler.has_work
    assert not at.step()
    assert (len(at.tokens("r")), counts(at), pages_held(at)) == (3, (0, 0, 1), held)
    at.resume("r")
    assert at.scheduler.has_work
    batches = len(at.executor.batches)  # type: ignore[attr-defined]
    at.run()
    assert at.executor.batches[batches] == [("r", 12, 13)]  # type: ignore[attr-defined]  # nothing is computed again
    assert (at.tokens("r"), at.finish("r"), at.stats().retractions) == (undisturbed(20), Length(20), 0)


def test_a_pause_in_the_middle_of_a_prompt_goes_on_from_there() -> None:
    at = desk(chunked_prefill_size=9)
    at.submit("r", list(range(10, 40)), max_new=5, ignore_eos=True)
    at.step()
    at.pause("r")
    at.step()
    at.resume("r")
    at.run()
    assert [batch[0][1:] for batch in at.executor.batches][:3] == [(0, 9), (9, 18), (18, 27)]  # type: ignore[attr-defined]
    assert at.tokens("r") == undisturbed(5, list(range(10, 40)))


def test_pausing_the_one_whose_prefix_others_wait_for_lets_them_start() -> None:
    at = desk(chunked_prefill_size=9)
    for rid in ("a", "b"):
        at.submit(rid, list(range(10, 40)), max_new=2, ignore_eos=True)
    at.step()
    assert counts(at) == (1, 1, 0)
    at.pause("a")
    at.run()
    assert at.finish("b") == Length(2)


def test_a_paused_request_leaves_its_slot_to_others_and_waits_for_one_when_it_resumes() -> None:
    at = desk(max_running_requests=1)
    at.submit("old", PROMPT, max_new=8, ignore_eos=True)
    at.step()
    at.pause("old")
    at.submit("new", [5, 6], max_new=8, ignore_eos=True)
    at.submit("last", [7, 8], max_new=8, ignore_eos=True)
    at.step()
    assert counts(at) == (1, 1, 1)
    at.resume("old")
    at.step()
    assert counts(at) == (1, 2, 0)
    at.run()
    ends = [row.rid for message in at.to_detokenizer.sent for row in message.rows if row.finish is not None]
    assert ends == ["new", "old", "last"]  # in its place by arrival
    assert at.tokens("old") == undisturbed(8)


def test_paused_requests_take_places_in_the_queue_so_that_there_are_never_too_many() -> None:
    at = desk(max_running_requests=1, max_queued_requests=1)
    for number in range(4):
        at.submit(f"r{number}", PROMPT, max_new=8)
        at.step()
        at.pause(f"r{number}")
    assert [item.rid for item in at.rejected()] == ["r2", "r3"]


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_running_requests_that_run_out_of_pages_get_those_of_a_paused_one(share_prefixes: bool) -> None:
    at = desk(num_pages=8, share_prefixes=share_prefixes)
    at.submit("asleep", PROMPT, max_new=20, ignore_eos=True)
    for _ in range(3):
        at.step()
    at.pause("asleep")
    at.submit("busy", [1, 2, 3], max_new=29, ignore_eos=True)  # needs all eight
    at.run()
    assert at.tokens("busy") == undisturbed(29, [1, 2, 3])
    assert (counts(at), pages_held(at), at.stats().retractions) == ((0, 0, 1), 0, 1)
    at.resume("asleep")
    at.run()
    assert at.tokens("asleep") == undisturbed(20)


def test_a_waiting_request_does_not_wait_for_the_pages_of_a_paused_one() -> None:
    at = desk(num_pages=8)
    at.submit("asleep", PROMPT, max_new=20, ignore_eos=True)
    at.step()
    at.pause("asleep")
    at.submit("new", [5] * 30, max_new=2, ignore_eos=True)
    at.run()
    assert at.finish("new") == Length(2)


def test_the_running_that_a_resumed_one_joins_stay_in_order_of_arrival() -> None:
    at = desk()
    for rid in "abc":
        at.submit(rid, [ord(rid)] * 3, max_new=8, ignore_eos=True)
    at.step()
    at.pause("a")
    at.step()
    at.resume("a")
    at.step()
    assert [rid for rid, _, _ in at.executor.batches[-1]] == ["a", "b", "c"]  # type: ignore[attr-defined]


def test_a_waiting_request_can_be_paused_and_resumed() -> None:
    at = desk(max_running_requests=1)
    at.submit("a", PROMPT, max_new=4, ignore_eos=True)
    at.submit("b", PROMPT, max_new=4, ignore_eos=True)
    at.step()
    at.pause("b")
    at.run()
    assert (at.finish("a"), at.finish("b"), counts(at)) == (Length(4), None, (0, 0, 1))
    at.resume("b")
    at.run()
    assert at.tokens("b") == at.tokens("a")


def test_pausing_twice_resuming_twice_and_unknown_rids_change_nothing() -> None:
    at = desk()
    at.submit("r", PROMPT, max_new=6, ignore_eos=True)
    at.step()
    for rid in ("r", "r", "nobody"):
        at.pause(rid)
    assert counts(at) == (0, 0, 1)
    for rid in ("nobody", "r", "r"):
        at.resume(rid)
    at.run()
    at.pause("r")
    at.resume("r")
    assert (at.tokens("r"), counts(at)) == (undisturbed(6), (0, 0, 0))


@pytest.mark.parametrize("has_pages", [True, False])
def test_a_paused_request_that_is_aborted_ends_with_the_cause_and_gives_everything_back(has_pages: bool) -> None:
    at = desk(num_pages=8)
    at.submit("r", PROMPT, max_new=20, ignore_eos=True)
    at.step()
    at.pause("r")
    if not has_pages:
        at.submit("other", [5] * 30, max_new=2)
        at.run()
    at.scheduler.handle(AbortReq("r", "slow_reader"))
    at.step()
    finish = at.finish("r")
    assert isinstance(finish, Abort)
    assert finish.cause == "slow_reader"
    assert (at.stats().scheduler_requests, counts(at), pages_held(at)) == (0, (0, 0, 0), 0)


def test_going_down_ends_paused_requests_too() -> None:
    at = desk()
    at.submit("r", PROMPT, max_new=20)
    at.step()
    at.pause("r")
    at.scheduler.close()
    finish = at.finish("r")
    assert isinstance(finish, Abort)
    assert finish.cause == "drain"
    assert pages_held(at) == 0
