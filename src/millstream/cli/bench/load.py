"""Load: when each question is asked.

Closed loop: so many clients, each asks again once it is answered. Open loop: sessions begin at random times of a mean rate,
whatever the server does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.cli.bench.wire import Record, Target, ask
from millstream.cli.bench.workload import Session


@dataclass(frozen=True, kw_only=True)
class Load:
    """How hard. One of `concurrency` (clients) and `rate` (sessions a second) is None."""

    concurrency: int | None
    rate: float | None
    duration_s: float | None
    """Begin no session after so many seconds."""
    seed: int


@dataclass
class Run:
    """What has happened so far; may be read at any time."""

    began: float = field(default_factory=time.perf_counter)
    records: list[Record] = field(default_factory=list)
    """Of requests that are over, in the order of their ends."""
    in_flight: int = 0


async def drive(sessions: Iterable[Session], target: Target, load: Load, run: Run, on_end: Callable[[Record], None]) -> None:
    """Ask everything; each finished request is added to `run` and told to `on_end`. Ends once the last is over."""
    run.began = time.perf_counter()
    waiting = iter(sessions)
    if load.rate is None:
        assert load.concurrency is not None
        await _all(_client(waiting, target, load, run, on_end) for _ in range(load.concurrency))
        return
    dice = random.Random(load.seed)
    due = run.began
    async with asyncio.TaskGroup() as group:
        for session in waiting:
            due += dice.expovariate(load.rate)
            if _is_late(due, load, run):
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(_session(session, due, target, run, on_end))  # the group holds it


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


async def _client(sessions: Iterator[Session], target: Target, load: Load, run: Run, on_end: Callable[[Record], None]) -> None:
    for session in sessions:
        if _is_late(time.perf_counter(), load, run):
            return
        await _session(session, time.perf_counter(), target, run, on_end)


async def _session(session: Session, due: float, target: Target, run: Run, on_end: Callable[[Record], None]) -> None:
    """The turns, one after the other; those after a turn that failed are not asked."""
    messages: list[dict[str, Any]] = []
    for turn in session.turns:
        messages += turn.messages
        record = Record(due)
        run.in_flight += 1
        try:
            text = await ask(target, messages, turn.max_tokens, record)
        finally:
            run.in_flight -= 1
        run.records.append(record)
        on_end(record)
        if record.error is not None:
            return
        messages.append({"role": "assistant", "content": text})
        due = time.perf_counter()


def _is_late(moment: float, load: Load, run: Run) -> bool:
    return load.duration_s is not None and moment - run.began >= load.duration_s
