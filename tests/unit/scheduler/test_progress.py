"""Progress: clients that asked hear their place in the queue and how much of their prompt is done; nobody else does."""

from __future__ import annotations

from typing import Any

from millstream.messages import Progress, ProgressOutput
from tests.unit.scheduler.harness import CheckingExecutor, Desk
from tests.unit.scheduler.test_deadlines import Time


def desk(**limits: Any) -> tuple[Desk, Time]:
    clock = Time()
    return Desk(CheckingExecutor(num_pages=64, page_size=4), clock=clock, **limits), clock


def news(at: Desk) -> list[Progress]:
    """What was said since the last look."""
    said = [each for message in at.to_entry.sent if isinstance(message, ProgressOutput) for each in message.requests]
    at.to_entry.sent.clear()
    return said


def test_place_and_prefill_are_told_until_the_first_token() -> None:
    at, clock = desk(chunked_prefill_size=10, max_running_requests=2)
    for rid in ("a", "b"):
        at.submit(rid, range(300, 303), max_new=30, ignore_eos=True)
    at.submit("asked", range(400, 425), max_new=9, ignore_eos=True, progress=True)
    at.submit("silent", range(500, 525), max_new=9, ignore_eos=True)
    at.step()
    assert news(at) == [Progress("asked", place=1)]
    at.abort("a")
    seen = []
    for _ in range(6):
        clock.now += 1
        at.step()
        seen += news(at)
    assert seen == [Progress("asked", done=9, total=25), Progress("asked", done=18, total=25)]
    assert len(at.tokens("asked")) > 1
    at.run()
    assert news(at) == []


def test_between_two_looks_time_passes_and_what_is_old_is_not_said_again() -> None:
    at, clock = desk(max_running_requests=1)
    at.submit("runs", max_new=50, ignore_eos=True)
    for rid in ("x", "y"):
        at.submit(rid, max_new=5, progress=True)
    at.step()
    assert news(at) == [Progress("x", place=1), Progress("y", place=2)]
    clock.now += 10
    at.step()
    assert news(at) == []
    at.abort("x")
    clock.now += 1
    at.step()
    assert news(at) == [Progress("y", place=1)]
    at.submit("z", progress=True)
    clock.now += 0.1
    at.step()
    assert news(at) == []
    clock.now += 0.2
    at.step()
    assert news(at) == [Progress("z", place=2)]


def test_a_request_that_ends_is_not_watched_any_more() -> None:
    at, _ = desk(max_running_requests=1)
    for rid in ("a", "b"):
        at.submit(rid, progress=True)
    at.abort("a")
    at.abort("b")
    at.step()
    assert news(at) == []
    assert len(at.scheduler._progress) == 0
