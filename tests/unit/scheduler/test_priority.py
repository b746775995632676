"""Priorities in the scheduler: who runs, who gives way, and that everybody ends."""

from __future__ import annotations

import pytest

from millstream.messages import Length
from millstream.scheduler.order import Order
from millstream.scheduler.placement import MAX_PREEMPTIONS
from tests.unit.scheduler.harness import CheckingExecutor, Desk

PROMPT = list(range(10, 20))


def desk(*, num_pages: int = 64, oldest_every: int = 8, **limits: int) -> tuple[Desk, CheckingExecutor]:
    executor = CheckingExecutor(num_pages=num_pages, page_size=4)
    return Desk(executor, order=Order(oldest_every=oldest_every), **limits), executor


def submit(at: Desk, rid: str, *, priority: int = 0, length: int = 10, max_new: int = 6) -> None:
    prompt = [ord(each) for each in rid.ljust(length, "_")]  # no two share a prefix
    at.submit(rid, prompt[:length], max_new=max_new, priority=priority, ignore_eos=True)


def rids(executor: CheckingExecutor, number: int = -1) -> list[str]:
    return [rid for rid, _, _ in executor.batches[number]]


def undisturbed(rid: str, *, length: int = 10, max_new: int = 6) -> list[int]:
    at, _ = desk()
    submit(at, rid, length=length, max_new=max_new)
    at.run()
    return at.tokens(rid)


def preemptions(at: Desk) -> int:
    return at.scheduler._placement.num_preemptions


def test_a_higher_priority_takes_the_slot_of_a_lower_one_which_goes_on_later_and_loses_nothing() -> None:
    at, executor = desk(max_running_requests=2)
    submit(at, "a", max_new=12)
    submit(at, "b", max_new=12)
    at.step()
    at.step()
    submit(at, "c", priority=1)
    at.step()
    assert sorted(rids(executor)) == ["a", "c"]  # of equals the newest gives way
    at.run()
    assert {rid: at.tokens(rid) for rid in "abc"} == {rid: undisturbed(rid, max_new=6 if rid == "c" else 12) for rid in "abc"}
    assert preemptions(at) == at.stats().retractions == at.stats().preemptions == 1
    assert {rid: at.rows(rid)[-1].usage.retractions for rid in "abc"} == {"a": 0, "b": 1, "c": 0}


@pytest.mark.parametrize("priority", [-1, 0])
def test_nobody_gives_way_to_an_equal_or_a_lower_priority(priority: int) -> None:
    at, executor = desk(max_running_requests=1)
    submit(at, "a")
    at.step()
    submit(at, "b", priority=priority)
    at.step()
    assert rids(executor) == ["a"]
    at.run()
    assert preemptions(at) == 0


def test_pages_are_made_free_for_a_higher_priority_by_as_few_as_will_do() -> None:
    at, executor = desk(num_pages=16)
    for rid in "abc":
        submit(at, rid, max_new=9)
    for _ in range(3):
        at.step()
    submit(at, "h", priority=1, length=20)  # five pages, and a page each to grow into
    at.step()
    assert rids(executor) == ["a", "b", "h"]
    at.run()
    assert all(at.finish(rid) == Length(9) for rid in "abc")
    assert at.tokens("h") == undisturbed("h", length=20)


def test_nobody_gives_way_in_vain() -> None:
    at, executor = desk(num_pages=16)
    submit(at, "high", priority=2, length=36, max_new=8)
    submit(at, "low", length=4, max_new=8)
    at.step()
    submit(at, "next", priority=1, length=40)  # `low` has not enough, and `high` is not to be touched
    at.step()
    assert rids(executor) == ["high", "low"]
    at.run()
    assert (preemptions(at), at.finish("next")) == (0, Length(6))


def test_nobody_gives_way_before_its_place_can_be_used() -> None:
    at, executor = desk(max_running_requests=2, chunked_prefill_size=16)
    submit(at, "low", length=4, max_new=30)
    at.step()
    submit(at, "high", priority=2, length=60)
    at.step()
    submit(at, "next", priority=1)
    for _ in range(3):
        at.step()
        assert rids(executor) == ["low", "high"]  # the prompt of `high` takes all tokens of the step
    at.step()
    assert rids(executor) == ["high", "next"]
    at.run()
    assert preemptions(at) == 1


def test_when_pages_run_out_the_lowest_priority_loses_its_own() -> None:
    at, executor = desk(num_pages=8)
    submit(at, "low", length=8, max_new=20)
    submit(at, "high", priority=1, length=8, max_new=20)
    while sorted(rids(executor)) != ["high"] if executor.batches else True:
        at.step()
    assert at.finish("low") is None
    at.run()
    assert at.tokens("low") == undisturbed("low", length=8, max_new=20)


def test_a_prompt_of_higher_priority_gets_the_tokens_of_a_step_before_a_longer_one_that_came_first() -> None:
    at, executor = desk(chunked_prefill_size=16)
    submit(at, "low", length=100)
    at.step()
    submit(at, "high", priority=1, length=20)
    at.step()
    assert executor.batches[-1] == [("high", 0, 16)]
    at.step()
    assert executor.batches[-1] == [("high", 16, 20), ("low", 16, 28)]
    at.run()


def test_a_request_gives_way_so_often_and_no_more() -> None:
    at, executor = desk(max_running_requests=1)
    submit(at, "low", max_new=30)
    for number in range(MAX_PREEMPTIONS):
        at.step()
        submit(at, f"h{number}", priority=1, max_new=1)
        at.step()
        assert rids(executor) == [f"h{number}"]
    at.step()
    submit(at, "last", priority=1, max_new=1)
    at.step()
    assert rids(executor) == ["low"]
    at.run()
    assert (at.tokens("low"), preemptions(at)) == (undisturbed("low", max_new=30), MAX_PREEMPTIONS)


@pytest.mark.parametrize("oldest_every", [1, 3, 8])
def test_a_flood_of_higher_priorities_does_not_keep_the_lowest_waiting_for_ever(oldest_every: int) -> None:
    at, executor = desk(max_running_requests=1, oldest_every=oldest_every)
    submit(at, "h0", priority=1, max_new=2)
    at.step()
    submit(at, "low", priority=-9, max_new=20)
    for number in range(1, 60):
        submit(at, f"h{number}", priority=1, max_new=2)
        at.step()
        at.step()
    first = next(index for index in range(len(executor.batches)) if "low" in rids(executor, index))
    before = {rid for index in range(1, first) for rid in rids(executor, index)} - {"h0"}
    assert len(before) == oldest_every - 1
    assert {tuple(rids(executor, index)) for index in range(first, first + 20)} == {("low",)}  # and then it runs to its end
    at.run()


def test_a_low_priority_whose_turn_it_is_does_not_keep_a_high_one_from_making_room() -> None:
    at, executor = desk(max_running_requests=2, oldest_every=2)
    submit(at, "h0", priority=2, max_new=30)
    submit(at, "low", max_new=30)
    at.step()
    submit(at, "middle", priority=1, max_new=30)  # the next slot that comes free by itself is `low`'s
    at.step()
    assert sorted(rids(executor)) == ["h0", "middle"]
    submit(at, "h1", priority=2, max_new=5)
    at.step()
    assert sorted(rids(executor)) == ["h0", "h1"]
    while at.finish("h1") is None:
        at.step()
    at.step()
    assert sorted(rids(executor)) == ["h0", "low"]
    at.run()


def test_a_queue_full_of_lower_priorities_takes_a_higher_one_and_no_other() -> None:
    at, _ = desk(max_running_requests=1, max_queued_requests=2)
    submit(at, "runs", priority=5)
    at.step()
    for rid, priority in (("a", 0), ("b", 0), ("c", 0), ("d", -1), ("e", 1), ("f", 1), ("g", 1)):
        submit(at, rid, priority=priority)
    at.run()
    assert [item.rid for item in at.rejected()] == ["c", "d", "g"]
    assert all(at.finish(rid) == Length(6) for rid in "abef")


def test_prompt_tokens_that_wait_with_lower_priority_do_not_count_against_a_higher_one() -> None:
    at, _ = desk(max_running_requests=1, max_queued_tokens=25)
    submit(at, "runs", priority=5)
    at.step()
    for rid, priority in (("a", 0), ("b", 0), ("c", 0), ("e", 1), ("f", 1), ("g", 1)):
        submit(at, rid, priority=priority)
    at.run()
    assert [item.rid for item in at.rejected()] == ["c", "g"]
