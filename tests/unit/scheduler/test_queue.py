"""WaitingQueue: order and weight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.scheduler.finish import EndRule
from millstream.scheduler.queue import WaitingQueue
from millstream.scheduler.state import Req
from tests.unit.scheduler.harness import tokenizer

RULE = EndRule(sampling=SamplingParams(), max_new_tokens=1, eos_token_ids=frozenset(), tokenizer=tokenizer())


def req(num_tokens: int) -> Req:
    message = TokenizedGenerateReqInput(
        rid="r", input_ids=[1] * num_tokens, sampling=SamplingParams(), max_new_tokens=1, timing=Timing()
    )
    return Req(message, RULE)


@given(st.lists(st.tuples(st.sampled_from(["append", "appendleft", "popleft", "remove"]), st.integers(1, 9))))
def test_whatever_comes_and_goes_the_weight_is_that_of_those_who_wait(moves: list[tuple[str, int]]) -> None:
    queue, naive = WaitingQueue(), []
    for move, number in moves:
        if move == "append":
            naive.append(req(number))
            queue.append(naive[-1])
        elif move == "appendleft":
            naive.insert(0, req(number))
            queue.appendleft(naive[0])
        elif naive and move == "popleft":
            assert queue.popleft() is naive.pop(0)
        elif naive:
            queue.remove(naive.pop(number % len(naive)))
        assert list(queue) == naive
        assert len(queue) == len(naive)
        for count in (0, 1, 3, 99):
            assert queue.num_tokens_behind(count) == sum(len(each.token_ids) for each in naive[count:])
