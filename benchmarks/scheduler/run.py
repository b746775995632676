"""What a step costs in the scheduler, the model aside: plan, settle, rows encoded for the wire. The executor answers at once.

python benchmarks/scheduler/run.py
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parts import PAGE_SIZE, SimulatedExecutor, Wire, make_scheduler, request

from millstream.scheduler.order import Order, SchedulePolicy

CONTEXT = 128  # tokens of a prompt
STEPS = 200  # of a round
ROUNDS = 9


@dataclass(frozen=True)
class Case:
    """So many requests that run, so many that wait for their slots, and how all of them came."""

    name: str
    running: int
    waiting: int = 0
    policy: SchedulePolicy = "fcfs"
    priorities: int = 1  # how many there are
    choices: int = 1  # of a call
    is_short_of_pages: bool = False  # those that wait lack pages and not slots


CASES = (
    Case("1 running", 1),
    Case("32 running", 32),
    Case("32 running, choices of one call", 32, choices=32),
    Case("32 running, 512 waiting", 32, 512),
    Case("32 running, 512 waiting, 8 priorities", 32, 512, priorities=8),
    Case("32 running, 512 waiting for pages", 32, 512, is_short_of_pages=True),
    Case("32 running, 512 waiting for pages, lpm", 32, 512, policy="lpm", is_short_of_pages=True),
    Case("256 running", 256),
)


class Bench:
    """A scheduler with a case's requests in it, all of them decoding."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pages = case.running * (CONTEXT + (ROUNDS + 2) * STEPS) // PAGE_SIZE + 2 * case.running + 64
        self.scheduler = make_scheduler(
            SimulatedExecutor(pages),
            slots=case.running + (1 if case.is_short_of_pages else 0),
            chunk=4096,
            target_itl_s=10.0,
            order=Order(case.policy),
            to_detokenizer=Wire(),
        )
        number = itertools.count()
        for _ in range(case.running):
            self.submit(next(number), CONTEXT, priority=case.priorities)
        while len(self.scheduler._queues.running) < case.running or any(
            req.is_prefilling for req in self.scheduler._queues.running.values()
        ):
            self.scheduler.step()
        for _ in range(case.waiting):
            length = (pages - 40) * PAGE_SIZE if case.is_short_of_pages else CONTEXT
            self.submit(next(number), length, priority=0)

    def submit(self, number: int, length: int, *, priority: int) -> None:
        """Hand over a request of its own prompt, or the next choice of the one call."""
        prompt = [300 + (0 if self.case.choices > 1 else number)] * length
        self.scheduler.handle(
            request(
                number,
                prompt,
                max_new=self.scheduler._limits.context_length - length,
                call="call" if self.case.choices > 1 else "",
                priority=priority if self.case.priorities == 1 else priority - number % self.case.priorities,
            )
        )

    def microseconds(self) -> tuple[float, float, float]:
        """CPU time of a step: all of it, planning, and sending."""
        plan, send = Stopwatch(self.scheduler._placement.next_work), Stopwatch(self.scheduler._output.send)
        whole = Stopwatch(self.scheduler.step)
        self.scheduler._placement.next_work = plan  # type: ignore[method-assign]
        self.scheduler._output.send = send  # type: ignore[method-assign]
        rounds = []
        for _ in range(ROUNDS):
            gc.collect()
            for watch in (plan, send, whole):
                watch.seconds = 0.0
            for _ in range(STEPS):
                whole()
            rounds.append([watch.seconds / STEPS * 1e6 for watch in (whole, plan, send)])
        running = len(self.scheduler._queues.running)
        assert running == self.case.running, f"{running} requests run at the end"
        total, planning, sending = (statistics.median(column) for column in zip(*rounds, strict=True))
        return total, planning, sending


class Stopwatch:
    """A function, and the CPU seconds spent in it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self) -> Any:
        """Call it."""
        start = time.process_time()
        result = self._function()
        self.seconds += time.process_time() - start
        return result


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    only = parser.parse_args().only
    print(f"{'us a step, CPU':46} {'all':>7} {'plan':>7} {'settle':>7} {'send':>7}")
    for case in CASES:
        if only in case.name:
            total, planning, sending = Bench(case).microseconds()
            print(f"{case.name:46} {total:7.1f} {planning:7.1f} {total - planning - sending:7.1f} {sending:7.1f}", flush=True)


if __name__ == "__main__":
    main()
