"""Order: priorities, known prefixes, and that nobody waits for ever."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.kv.radix_cache import Match
from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.observe.ledger import Ledger
from millstream.scheduler.finish import EndRule
from millstream.scheduler.order import Order, SchedulePolicy
from millstream.scheduler.policy import Known
from millstream.scheduler.state import Req
from millstream.scheduler.waiting import WaitingQueue
from tests.unit.scheduler.harness import CheckingExecutor, Desk, tokenizer

RULE = EndRule(sampling=SamplingParams(), max_new_tokens=1, eos_token_ids=frozenset(), tokenizer=tokenizer())
ENDLESS = 10_000


def req(arrival: int, *, priority: int = 0, known: int = 0) -> Req:
    """A request of whose tokens `known` are known already."""
    message = TokenizedGenerateReqInput(
        rid=f"r{arrival}",
        input_ids=[1] * (known + 1),
        sampling=SamplingParams(),
        max_new_tokens=1,
        priority=priority,
        timing=Timing(),
    )
    return Req(message, RULE, Ledger("test").open("r"), arrival)


def find(req: Req) -> Known:
    return Known(Match(None, [], 0, 0), len(req.token_ids) - 1)


def queue_of(*reqs: Req) -> WaitingQueue:
    queue = WaitingQueue()
    for each in reqs:
        queue.add(each)
    return queue


def line(order: Order, queue: WaitingQueue, favoured: Req | None = None) -> list[int]:
    return [each.arrival for each in order.line(queue, find, favoured)]


def take(order: Order, queue: WaitingQueue, count: int = 1) -> list[Req]:
    """Admit so many, one after the other."""
    taken = []
    for _ in range(count):
        first = next(order.line(queue, find))
        order.took(first, queue)
        queue.remove(first)
        taken.append(first)
    return taken


def test_the_higher_priority_goes_first_and_arrival_decides_among_equals() -> None:
    queue = queue_of(req(0), req(1, priority=5), req(2, priority=-3), req(3, priority=5), req(4))
    assert line(Order(), queue) == [1, 3, 0, 4, 2]


def test_the_longest_known_prefix_goes_first_among_equal_priorities() -> None:
    queue = queue_of(req(0), req(1, known=8), req(2, known=16), req(3, known=8), req(4, priority=1))
    assert line(Order("lpm"), queue) == [4, 2, 1, 3, 0]
    assert line(Order("fcfs"), queue) == [4, 0, 1, 2, 3]


def test_prefixes_are_looked_up_again_only_when_the_tree_has_changed() -> None:
    queue, asked = queue_of(req(0), req(1, known=8)), []

    def find_once(each: Req) -> Known:
        asked.append(each.arrival)
        return find(each)

    order = Order("lpm")
    for version in (1, 1, 2):
        assert [each.arrival for each in order.line(queue, find_once, version=version)] == [1, 0]
    assert asked == [0, 1, 0, 1]


def test_only_the_front_of_a_long_queue_is_sorted_by_prefix() -> None:
    queue = queue_of(*(req(arrival, known=arrival) for arrival in range(200)))
    assert line(Order("lpm", oldest_every=ENDLESS), queue) == [*range(127, -1, -1), *range(128, 200)]


def test_every_so_often_it_is_the_turn_of_the_oldest_which_is_then_promoted() -> None:
    queue = queue_of(req(0), *(req(arrival, priority=1) for arrival in range(1, 8)))
    order = Order(oldest_every=3)
    assert line(order, queue) == [1, 2, 0, 3, 4, 5, 6, 7]
    taken = take(order, queue, 3)
    assert [each.arrival for each in taken] == [1, 2, 0]
    assert [each.is_promoted for each in taken] == [False, False, True]
    assert taken[2].rank < min(each.rank for each in queue)


def test_who_is_first_anyway_is_not_promoted() -> None:
    queue = queue_of(*(req(arrival) for arrival in range(20)))
    assert not any(each.is_promoted for each in take(Order(oldest_every=2), queue, 20))


def test_whoever_room_was_made_for_comes_first_even_where_it_is_the_turn_of_the_oldest() -> None:
    high = req(5, priority=1)
    queue = queue_of(req(0), *(req(arrival, priority=1) for arrival in range(1, 5)), high)
    order = Order(oldest_every=2)
    take(order, queue)
    assert line(order, queue)[:2] == [0, 2]
    assert line(order, queue, high)[:3] == [5, 0, 2]


def test_the_line_is_what_comes_of_taking_its_first_again_and_again() -> None:
    for policy, oldest_every in itertools.product(("fcfs", "lpm"), (1, 2, 3, 8)):
        reqs = [req(arrival, priority=arrival % 3, known=arrival * 7 % 5) for arrival in range(12)]
        order = Order(policy, oldest_every=oldest_every)
        expected = line(order, queue_of(*reqs))
        assert [each.arrival for each in take(order, queue_of(*reqs), 12)] == expected


@given(
    policy=st.sampled_from(["fcfs", "lpm"]),
    oldest_every=st.integers(1, 6),
    arrivals=st.lists(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 9)), max_size=4), max_size=30),
)
def test_nobody_is_passed_over_more_often_than_its_place_by_arrival_allows(
    policy: SchedulePolicy, oldest_every: int, arrivals: Sequence[Sequence[tuple[int, int]]]
) -> None:
    order, queue, number = Order(policy, oldest_every=oldest_every), WaitingQueue(), itertools.count()
    allowed: dict[Req, int] = {}  # admissions before its own
    for burst in [*arrivals, *[()] * 200]:  # one admission after each burst
        for priority, known in burst:
            newcomer = req(next(number), priority=priority, known=known)
            allowed[newcomer] = (len(queue) + 1) * oldest_every
            queue.add(newcomer)
        if len(queue):
            (taken,) = take(order, queue)
            del allowed[taken]
            for waiting in allowed:
                allowed[waiting] -= 1
            assert all(left > 0 for left in allowed.values())
    assert not allowed


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", ["cold", "warm"]), ("lpm", ["warm", "cold"])])
def test_a_scheduler_admits_by_the_prefixes_that_its_pool_knows(policy: SchedulePolicy, expected: list[str]) -> None:
    at = Desk(CheckingExecutor(num_pages=64, page_size=4), order=Order(policy), max_running_requests=1)
    at.submit("first", range(100, 120), max_new=4, ignore_eos=True)
    at.step()
    at.submit("cold", range(200, 220), max_new=2, ignore_eos=True)
    at.submit("warm", range(100, 121), max_new=2, ignore_eos=True)
    at.run()
    ends = [row.rid for message in at.to_detokenizer.sent for row in message.rows if row.finish is not None]
    assert ends == ["first", *expected]
    assert at.rows("warm")[-1].usage.cached_tokens == 20
