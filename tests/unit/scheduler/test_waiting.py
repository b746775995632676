"""WaitingQueue: order and weight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.observe.ledger import Ledger
from millstream.scheduler.finish import EndRule
from millstream.scheduler.state import Req
from millstream.scheduler.waiting import WaitingQueue
from tests.unit.scheduler.harness import tokenizer

RULE = EndRule(sampling=SamplingParams(), max_new_tokens=1, eos_token_ids=frozenset(), tokenizer=tokenizer())


def req(num_tokens: int, arrival: int = 0) -> Req:
    message = TokenizedGenerateReqInput(
        rid="r", input_ids=[1] * num_tokens, sampling=SamplingParams(), max_new_tokens=1, timing=Timing()
    )
    return Req(message, RULE, Ledger("test").open("r"), arrival)


@given(st.lists(st.tuples(st.sampled_from(["append", "put back", "take first", "remove"]), st.integers(1, 9))))
def test_whatever_comes_and_goes_order_and_weight_are_those_of_who_waits(moves: list[tuple[str, int]]) -> None:
    queue = WaitingQueue()
    naive: list[Req] = []
    away: list[Req] = []
    for arrival, (move, number) in enumerate(moves):
        if move == "append":
            naive.append(req(number, arrival))
            queue.add(naive[-1])
        elif move == "put back" and away:
            naive = sorted([*naive, away[0]], key=lambda each: each.arrival)
            queue.add(away.pop(0))
        elif move == "take first" and naive:
            assert queue.urgent is naive[0]
            away.append(naive.pop(0))
            queue.remove(away[-1])
        elif move == "remove" and naive:
            queue.remove(naive.pop(number % len(naive)))
        assert list(queue) == naive
        assert len(queue) == len(naive)
        for count in (0, 1, 3, 99):
            assert queue.num_tokens_between(count, len(naive)) == sum(len(each.token_ids) for each in naive[count:])
            assert queue.num_tokens_between(1, count) == sum(len(each.token_ids) for each in naive[1:count])
        assert queue.num_ahead_of(0) == len(naive)
        assert queue.num_ahead_of(1) == 0
