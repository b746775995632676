"""What timelines cost: the calls that one request makes in each process, and an `Engine` with and without all of them.

python benchmarks/front/timeline.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec

from millstream import Engine
from millstream.entry.caller import Caller
from millstream.entry.ending import record_of
from millstream.entry.generation import Generation, Origin
from millstream.entry.recent import Recent
from millstream.entry.state import Phase, ReqState
from millstream.kv.pool import KVPool
from millstream.messages import GenerateReqInput, Length, SamplingParams, Timing
from millstream.messages.journey import Divergence
from millstream.observe.ledger import Ledger
from millstream.observe.trace_context import trace_context
from millstream.scheduler.stays import StayBook, Stays

COUNT = 5_000
ROUNDS = 7
PROMPT = list(range(1000, 1500))
HEADER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Work = Callable[[], object]


def entry() -> Work:
    """The trace context, and the record in the ring."""
    ledger, recent = Ledger("bench"), Recent(512)
    timing = Timing(received=1.0, adapted=1.1, tokenized=1.2, queued=1.3, admitted=1.4, prefilled=1.5, journey=bytes(120))
    request = GenerateReqInput(rid="0" * 32, input_ids=PROMPT, sampling=SamplingParams(), timing=timing)
    state = ReqState(request, ledger.open("r"))
    origin = Origin(api="chat", model="m", prompt_param="messages", caller=Caller("req_1", "", trace_context(HEADER)))
    generation = Generation("0" * 32, [state], origin, ledger.open("r"))
    state.move(Phase.DISPATCHED)
    state.end(Length(1))
    state.released = True

    def work() -> None:
        _ = trace_context(HEADER).header
        recent.add(record_of(state, generation, time.monotonic()))

    return work


def scheduler() -> Work:
    """The stays of a request that waits once and computes its prompt in one step, encoded at its end."""
    book = StayBook(time.monotonic)

    def work() -> None:
        req: Any = SimpleNamespace(stays=Stays())
        book.waits(req, "waiting", "arrived", 3)
        book.goes_on(req)
        book.note_chunk(req, 500, 1.0, 2.0)
        req.stays.cache = Divergence("diverged", 400, PROMPT[:16], PROMPT[16:32], PROMPT[32:48])
        book.journey(req)

    return work


def divergence() -> Work:
    """The look into the prefix tree: 400 tokens are known, and 128 prefixes go on from there."""
    pool = KVPool(num_pages=1 << 15, page_size=16)
    for number in range(128):
        lease = pool.open(Ledger("bench").open("r"), "", [*PROMPT[:400], *[number] * 100])
        pool.grow(lease, 500)
        pool.close(lease, [*PROMPT[:400], *[number] * 100], 500, "stop")
    return lambda: pool.diverged("", PROMPT, 400, 499)


def microseconds(work: Work, count: int = COUNT) -> float:
    """Median CPU time of one call, over several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            work()
        rounds.append((time.process_time() - start) / count * 1e6)
    return statistics.median(rounds)


@contextmanager
def without() -> Iterator[None]:
    """Nothing of it: no stays, no look into the tree."""
    nothing = {name: lambda *args, **more: None for name in ("waits", "goes_on", "note_line", "note_chunk")}
    encoded = msgspec.msgpack.encode({})
    with (
        patch.multiple(StayBook, journey=lambda *args: encoded, **nothing),
        patch.object(KVPool, "diverged", lambda *args: None),
    ):
        yield


def engine_cpu(engine: Engine, concurrent: int, tokens: int) -> float:
    """CPU microseconds a request, of all threads, of one batch of scripted requests."""
    prompts = [f'<script>{{"pieces": {["x"] * tokens}}}</script>'.replace("'", '"') + str(n) for n in range(concurrent)]
    start = time.process_time()
    engine.generate(prompts, {"max_new_tokens": tokens})
    return (time.process_time() - start) / concurrent * 1e6


def compare(rounds: int, concurrent: int, tokens: int) -> tuple[float, float]:
    """Medians without and with, taken in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    with Engine(executor="scripted", script="inline", max_running_requests=concurrent) as engine:
        engine_cpu(engine, concurrent, tokens)
        for _ in range(rounds):
            with without():
                found[0].append(engine_cpu(engine, concurrent, tokens))
            found[1].append(engine_cpu(engine, concurrent, tokens))
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> None:
    """Print a line for each process, and one for the engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--concurrent", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    for make in (entry, scheduler, divergence):
        print(f"{make.__name__:12} {microseconds(make()):6.2f} us a request")
    before, after = compare(args.rounds, args.concurrent, args.tokens)
    share = 100 * (after / before - 1)
    print(f"engine       {before:6.0f} us of CPU a request without, {after:6.0f} with: {share:+.1f} %")


if __name__ == "__main__":
    main()
