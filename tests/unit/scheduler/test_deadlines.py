"""Deadlines: a request ends when its time is up, whatever it is doing, and nobody else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import Abort, Length
from millstream.scheduler.deadlines import Deadlines
from tests.unit.scheduler.harness import CheckingExecutor, Desk

RIDS = ("a", "b", "c", "d")


class Time:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def desk(**limits: Any) -> tuple[Desk, Time]:
    clock = Time()
    return Desk(CheckingExecutor(num_pages=64, page_size=4), clock=clock, **limits), clock


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "mid-prefill", "decoding"])
def test_a_request_ends_when_its_time_is_up_and_its_neighbours_go_on(steps: int) -> None:
    at, clock = desk(chunked_prefill_size=8)
    at.submit("late", range(300, 315), max_new=90, ignore_eos=True, deadline=5.0)
    at.submit("patient", range(400, 405), max_new=6, ignore_eos=True, deadline=50.0)
    at.submit("other", range(500, 505), max_new=6, ignore_eos=True)
    for _ in range(steps):
        at.step()
    clock.now = 4.999
    at.step()
    assert at.finish("late") is None
    clock.now = 5.0
    at.step()
    assert at.finish("late") == Abort("deadline", "The request did not end within 5 s.", 504)
    at.run()
    assert at.finish("patient") == at.finish("other") == Length(6)
    assert at.stats().pages_free == 64
    assert at.scheduler.wait_s is None


def test_a_request_in_the_queue_ends_without_ever_running() -> None:
    at, clock = desk(max_running_requests=1)
    at.submit("running", max_new=50, ignore_eos=True)
    at.submit("queued", deadline=2.0)
    at.step()
    clock.now = 3.0
    at.step()
    (row,) = at.rows("queued")
    assert isinstance(row.finish, Abort)
    assert (row.finish.cause, row.token_ids) == ("deadline", [])


def test_a_request_that_comes_too_late_is_refused() -> None:
    at, clock = desk()
    clock.now = 7.0
    at.submit("r", deadline=6.5)
    at.step()
    (refused,) = at.rejected()
    assert (refused.status, refused.type, refused.code, refused.retry_after_s) == (504, "timeout_error", "deadline", None)
    assert (at.accepted(), at.rows("r")) == ([], [])


def test_a_rid_that_is_used_again_does_not_inherit_a_deadline() -> None:
    at, clock = desk()
    at.submit("r", max_new=1, deadline=5.0)
    at.run()
    at.submit("r", max_new=3, ignore_eos=True)
    clock.now = 9.0
    at.run()
    assert at.rows("r")[-1].finish == Length(3)


def test_the_loop_waits_not_at_all_with_work_and_for_ever_without() -> None:
    at, _ = desk()
    assert at.scheduler.wait_s is None
    at.submit("r", max_new=2, deadline=5.0)
    assert at.scheduler.wait_s == 0.0
    at.run()
    assert at.scheduler.wait_s is None


operations = st.lists(st.tuples(st.sampled_from(["add", "discard", "look"]), st.sampled_from(RIDS), st.integers(0, 9)))


@given(operations)
def test_whatever_is_added_and_discarded_exactly_what_is_due_is_found(moves: list[tuple[str, str, int]]) -> None:
    deadlines, naive = Deadlines(), {}
    for move, rid, time in moves:
        if move == "add":
            deadlines.discard(rid)
            naive.pop(rid, None)
            deadlines.add(rid, time)
            naive[rid] = time
        elif move == "discard":
            deadlines.discard(rid)
            naive.pop(rid, None)
        else:
            assert deadlines.overdue(time) == [(each, at) for each, at in naive.items() if at <= time]
        wait_s = deadlines.wait_s(0)
        assert (wait_s is None) == (not naive)
        assert wait_s is None or wait_s <= min(naive.values())  # woken too early at most, never too late
        assert len(deadlines) == len(naive)
