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

import msgspec

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput
from millstream.kv.pool import KVPool
from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.scheduler.admission import Limits
from millstream.scheduler.order import Order, SchedulePolicy
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import load_scripted_tokenizer

PAGE_SIZE = 16
CONTEXT = 128  # tokens of a prompt
STEPS = 200  # of a round
ROUNDS = 9
TOKENIZER = load_scripted_tokenizer()


class NullExecutor:
    """Says one token for each row that asks."""

    capabilities = Capabilities(
        vocab_size=1536, context_length=1 << 20, num_pages=1 << 16, page_size=PAGE_SIZE, eos_token_ids=frozenset()
    )

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Answer at once."""
        return ForwardOutput([[300] if row.sample else [] for row in batch.rows])

    def close(self) -> None:
        """Nothing is held."""


class Wire:
    """Encodes what it is given, as a channel does, and drops it."""

    connection, receiver_pid = 1, 1

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Any) -> int:
        """Encode."""
        self._encoder.encode(message)
        return self.connection

    def connect(self) -> int:
        """There is one."""
        return self.connection


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
        executor = NullExecutor()
        pages = case.running * (CONTEXT + (ROUNDS + 2) * STEPS) // PAGE_SIZE + 2 * case.running + 64
        self.scheduler = Scheduler(
            executor=executor,
            tokenizer=TOKENIZER,
            pool=KVPool(num_pages=pages, page_size=PAGE_SIZE),
            eos_token_ids=frozenset(),
            limits=Limits(
                max_running_requests=case.running + (1 if case.is_short_of_pages else 0),
                max_queued_requests=1 << 20,
                max_queued_tokens=1 << 40,
                chunked_prefill_size=4096,
                context_length=pages * PAGE_SIZE,
                vocab_size=1536,
                target_itl_s=10.0,
            ),
            order=Order(case.policy),
            to_detokenizer=Wire(),
            to_entry=lambda entry: Wire(),
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
            TokenizedGenerateReqInput(
                rid=f"r{number}",
                input_ids=prompt,
                sampling=SamplingParams(seed=number),
                max_new_tokens=self.scheduler._limits.context_length - length,
                call="call" if self.case.choices > 1 else "",
                slot=number,
                priority=priority if self.case.priorities == 1 else priority - number % self.case.priorities,
                timing=Timing(),
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
