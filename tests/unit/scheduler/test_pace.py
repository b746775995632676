"""Pace: when somebody who was refused should come back, from what is ahead and how fast it goes."""

from __future__ import annotations

import pytest

from millstream.execution.interface import ForwardBatch, ForwardOutput
from millstream.messages import AdmissionOutput
from millstream.scheduler.pace import MEMORY_S, Pace, retry_after_s
from millstream.scheduler.waiting import WaitingQueue
from tests.unit.scheduler.harness import CheckingExecutor, Desk, desk
from tests.unit.scheduler.test_deadlines import Time
from tests.unit.scheduler.test_waiting import req


@pytest.mark.parametrize(
    ("tokens", "pace", "seconds"),
    [
        (0, 100, 1),
        (50, 100, 1),
        (100, 100, 1),
        (101, 100, 2),
        (5900, 100, 59),
        (1e12, 100, 60),
        (1000, 0, 1),
        (1e308, 1e-308, 60),
    ],
)
def test_the_wait_is_what_is_ahead_over_the_pace_within_a_second_and_a_minute(tokens: float, pace: float, seconds: int) -> None:
    assert retry_after_s(tokens, pace) == seconds


def test_the_pace_is_that_of_the_last_busy_seconds() -> None:
    pace = Pace()
    assert pace.tokens_per_s == 0
    for _ in range(1000):
        pace.note_step(100, 1.0)
    assert pace.tokens_per_s == pytest.approx(100)
    for _ in range(int(5 * MEMORY_S)):
        pace.note_step(10, 1.0)
    assert pace.tokens_per_s == pytest.approx(10, rel=0.3)


def test_prompts_and_answers_of_all_that_is_here_are_ahead() -> None:
    pace, waiting = Pace(), WaitingQueue()
    pace.note_step(10, 1.0)
    assert pace.retry_after_s(waiting, []) == 1
    pace.note_end(20)
    waiting.add(req(100))
    running = req(60)
    running.num_computed = 20
    assert pace.retry_after_s(waiting, [running]) == (100 + 20 + 20 + 40) / 10
    running.is_prefilling = False
    running.token_ids += [1] * 15
    assert pace.retry_after_s(waiting, [running]) == 13  # (100 + 20 + 5) / 10, rounded up


def test_a_refused_request_is_told_by_the_pace_and_so_is_the_entry() -> None:
    clock = Time()

    class SlowExecutor(CheckingExecutor):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            clock.now += 0.5
            return super().forward(batch)

    at = Desk(SlowExecutor(num_pages=64, page_size=4), clock=clock, max_running_requests=1, max_queued_requests=1)
    at.submit("first", max_new=10, ignore_eos=True)
    at.run()  # 3 + 9 tokens in 10 steps
    at.submit("running", range(300, 330), max_new=10, ignore_eos=True)
    at.submit("waiting", range(330, 360), max_new=10, ignore_eos=True)
    at.submit("refused", max_new=10)
    at.step()
    (refused,) = at.rejected()
    assert refused.status == 429
    assert refused.retry_after_s == 34  # 60 tokens of prompts, two answers of 10, at 12 tokens in 5 seconds
    verdicts = [message for message in at.to_entry.sent if isinstance(message, AdmissionOutput)]
    assert verdicts[-1].retry_after_s == 34


def test_a_probe_says_nothing_of_how_long_answers_are() -> None:
    at, _ = desk()
    at.submit("r", max_new=20, ignore_eos=True)
    at.run()
    usual = at.scheduler._pace._mean_output
    for number in range(20):
        at.submit(f"probe-{number}", max_new=1, ignore_eos=True, is_probe=True)
        at.run()
    assert at.scheduler._pace._mean_output == usual == 20
