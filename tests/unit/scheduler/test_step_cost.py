"""StepCost: learned prices, and steps that keep their bound whatever comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput
from millstream.scheduler.step_cost import MIN_PREFILL_TOKENS, StepCost
from tests.unit.scheduler.harness import EOS, Desk
from tests.unit.scheduler.test_deadlines import Time

BOUND_S = 0.1
NUM_LESSONS = 6  # steps with both kinds of tokens after which the prices are known


class TimedExecutor:
    """Takes as long as its tokens cost. `steps` has (decode tokens, prompt tokens, seconds)."""

    def __init__(self, clock: Time, price: tuple[float, float, float]) -> None:
        self.capabilities = Capabilities(
            vocab_size=1536, context_length=4096, num_pages=8000, page_size=4, eos_token_ids=frozenset({EOS})
        )
        self.clock = clock
        self.price = price
        self.steps: list[tuple[int, int, float]] = []

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Let the time pass."""
        decode = sum(len(row.token_ids) > row.num_prompt_tokens for row in batch.rows)
        prefill = sum(row.end - row.start for row in batch.rows if len(row.token_ids) == row.num_prompt_tokens)
        seconds = self.price[0] + self.price[1] * decode + self.price[2] * prefill
        self.clock.now += seconds
        self.steps.append((decode, prefill, seconds))
        return ForwardOutput([[300] if row.sample else [] for row in batch.rows])

    def close(self) -> None:
        """Nothing is held."""


def desk(price: tuple[float, float, float], bound_s: float | None = BOUND_S) -> tuple[Desk, TimedExecutor]:
    clock = Time()
    executor = TimedExecutor(clock, price)
    return Desk(executor, clock=clock, max_running_requests=32, chunked_prefill_size=512, target_itl_s=bound_s), executor


@pytest.mark.long
@settings(deadline=None)
@given(
    price=st.tuples(st.floats(0.001, 0.04), st.floats(0, 0.001), st.floats(0.0001, 0.0012)),
    arrivals=st.lists(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 40)), max_size=3), min_size=5, max_size=40),
)
def test_steps_with_decodes_keep_the_bound_and_every_prompt_gets_on(
    price: tuple[float, float, float], arrivals: Sequence[Sequence[tuple[int, int]]]
) -> None:
    at, executor = desk(price)
    number = 0
    for burst in arrivals:
        for length, max_new in burst:
            at.submit(f"r{number}", [number % 900 + 5] * length, max_new=max_new, ignore_eos=True)
            number += 1
        at.step()
    at.run()
    assert all(at.finish(f"r{each}") is not None for each in range(number))
    mixed = [(decode, prefill, seconds) for decode, prefill, seconds in executor.steps if decode and prefill]
    for decode, prefill, seconds in mixed[NUM_LESSONS:]:
        assert seconds <= BOUND_S or prefill <= MIN_PREFILL_TOKENS, (decode, prefill, seconds)


def test_prompts_are_computed_in_full_chunks_while_nobody_decodes() -> None:
    at, executor = desk((0.01, 0.001, 0.001))
    at.submit("long", [7] * 1500, max_new=2, ignore_eos=True)
    at.run()
    assert [prefill for _, prefill, _ in executor.steps] == [512, 512, 476, 0]


def test_a_step_uses_what_its_bound_leaves() -> None:
    at, executor = desk((0.01, 0.001, 0.0005))
    at.submit("talks", [5, 6, 7], max_new=200, ignore_eos=True)
    for _ in range(5):
        at.step()
    at.submit("long", [9] * 3000, max_new=1, ignore_eos=True)
    at.run()
    mixed = [seconds for decode, prefill, seconds in executor.steps if decode and prefill]
    assert all(0.8 * BOUND_S < seconds <= BOUND_S for seconds in mixed[NUM_LESSONS:-1])


@pytest.mark.parametrize("price", [(0.3, 0.001, 0.001), (0.01, 0.001, 0.5)])
def test_where_the_bound_cannot_be_kept_prompts_get_on_all_the_same(price: tuple[float, float, float]) -> None:
    at, executor = desk(price)
    at.submit("talks", [5, 6, 7], max_new=60, ignore_eos=True)
    at.step()
    at.submit("long", [9] * 800, max_new=1, ignore_eos=True)
    at.run()
    assert {prefill for decode, prefill, _ in executor.steps[3:-1] if decode and prefill} <= {MIN_PREFILL_TOKENS, 800 % 32}


def test_without_a_bound_chunks_are_as_large_as_the_step() -> None:
    at, executor = desk((0.3, 0.001, 0.5), bound_s=None)
    at.submit("talks", [5, 6, 7], max_new=60, ignore_eos=True)
    at.step()
    at.submit("long", [9] * 1200, max_new=1, ignore_eos=True)
    at.run()
    assert [prefill for decode, prefill, _ in executor.steps if decode and prefill] == [511, 511, 178]


def test_what_was_known_of_prompts_is_not_forgotten_while_there_are_none() -> None:
    cost = StepCost(BOUND_S)
    for _ in range(8):
        cost.note_step(1, 64, 0.011 + 0.0005 * 64)
    for _ in range(5000):
        cost.note_step(1, 0, 0.011)
    assert cost.prefill_tokens(1) == pytest.approx((0.9 * BOUND_S - 0.011) / 0.0005, rel=0.05)


def test_one_step_that_stood_still_does_not_stop_prompts() -> None:
    cost = StepCost(BOUND_S)
    for number in range(30):
        cost.note_step(number % 4, 64, 0.01 + 0.0005 * 64)
    before = cost.prefill_tokens(2)
    cost.note_step(2, 64, 60.0)
    assert cost.prefill_tokens(2) > before / 4
    for number in range(60):
        cost.note_step(number % 4, 64, 0.01 + 0.0005 * 64)
    assert cost.prefill_tokens(2) == pytest.approx(before, rel=0.05)
