"""What the scheduler's benchmarks share: a scheduler, requests, a wire to nowhere, a simulated model with its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput
from millstream.kv.pool import KVPool
from millstream.messages import SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.scheduler.admission import Limits
from millstream.scheduler.order import Order
from millstream.scheduler.scheduler import Scheduler
from millstream.text.tokenizer import load_scripted_tokenizer

PAGE_SIZE = 16
VOCAB_SIZE = 1536
TOKENIZER = load_scripted_tokenizer()


class Wire:
    """Encodes what it is given, as a channel does, and drops it, or hands it to `look`."""

    connection, receiver_pid = 1, 1

    def __init__(self, look: Callable[[Any], None] | None = None) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._look = look

    def send(self, message: Any) -> int:
        """Encode it."""
        self._encoder.encode(message)
        if self._look is not None:
            self._look(message)
        return self.connection

    def connect(self) -> int:
        """There is one."""
        return self.connection


class SimulatedExecutor:
    """Says one token for each row that asks, in a time that its tokens make: `price` has seconds a step, a decode token and a
    prompt token. Without a price it takes none.
    """

    def __init__(self, num_pages: int, price: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> None:
        self.capabilities = Capabilities(
            vocab_size=VOCAB_SIZE, context_length=1 << 20, num_pages=num_pages, page_size=PAGE_SIZE, eos_token_ids=frozenset()
        )
        self.now = 0.0  # seconds
        self.num_computed = 0  # tokens
        self._price = price

    def clock(self) -> float:
        """The simulation's time."""
        return self.now

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Answer, and let the time pass that it takes."""
        if any(self._price):
            decodes = sum(row.end - row.start == 1 for row in batch.rows)
            tokens = sum(row.end - row.start for row in batch.rows)
            self.num_computed += tokens
            self.now += self._price[0] + self._price[1] * decodes + self._price[2] * (tokens - decodes)
        return ForwardOutput([[300] if row.sample else [] for row in batch.rows])

    def close(self) -> None:
        """Nothing is held."""


def make_scheduler(
    executor: SimulatedExecutor,
    *,
    slots: int,
    chunk: int,
    target_itl_s: float | None,
    order: Order,
    to_detokenizer: Wire,
    clock: Callable[[], float] = time.monotonic,
) -> Scheduler:
    """A scheduler that has all of the executor's pages and turns no request away."""
    pages = executor.capabilities.num_pages
    return Scheduler(
        executor=executor,
        tokenizer=TOKENIZER,
        pool=KVPool(num_pages=pages, page_size=PAGE_SIZE),
        eos_token_ids=frozenset(),
        limits=Limits(
            max_running_requests=slots,
            max_queued_requests=1 << 20,
            max_queued_tokens=1 << 40,
            chunked_prefill_size=chunk,
            context_length=pages * PAGE_SIZE,
            vocab_size=VOCAB_SIZE,
            target_itl_s=target_itl_s,
        ),
        order=order,
        to_detokenizer=to_detokenizer,
        to_entry=lambda entry: Wire(),
        clock=clock,
    )


def request(
    number: int, prompt: Sequence[int], *, max_new: int, priority: int = 0, call: str = ""
) -> TokenizedGenerateReqInput:
    """A request by its number."""
    return TokenizedGenerateReqInput(
        rid=f"r{number}",
        input_ids=list(prompt),
        sampling=SamplingParams(seed=number, ignore_eos=True),
        max_new_tokens=max_new,
        call=call,
        slot=number,
        priority=priority,
        timing=Timing(),
    )
