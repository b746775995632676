"""A flush forgets every kept prefix where nothing is live, and nothing where something is."""

from __future__ import annotations

import pytest

from millstream.messages import FlushReply, FlushReq, PauseReq, RadixReply, RadixReq
from tests.unit.scheduler.harness import Desk, desk


def flush(at: Desk, entry: int = 0) -> FlushReply:
    at.scheduler.handle(FlushReq(1, entry))
    (reply,) = [message for message in at.to_entry.sent[-1:] if isinstance(message, FlushReply)]
    assert at.asked_entries[-1] == entry
    at.scheduler.audit()
    return reply


def test_a_flush_frees_the_pages_of_all_prefixes_and_they_are_computed_again() -> None:
    at, _ = desk()
    for number in range(3):
        at.submit(f"r{number}", input_ids=[*range(5, 25), number], max_new=3)
    at.run()
    cached = at.stats().pages_cached
    assert cached > 0
    assert flush(at, entry=2) == FlushReply(1, 0, cached)
    stats = at.stats()
    assert (stats.pages_cached, stats.pages_free) == (0, stats.pages_total)
    assert flush(at) == FlushReply(1, 0, 0)
    at.submit("again", input_ids=[*range(5, 25), 0], max_new=3)
    at.run()
    assert at.rows("again")[-1].usage.cached_tokens == 0


@pytest.mark.parametrize("state", ["waiting", "running", "paused"])
def test_a_flush_changes_nothing_while_a_request_is_live(state: str) -> None:
    at, _ = desk()
    at.submit("first", input_ids=list(range(5, 25)), max_new=2)
    at.run()
    cached = at.stats().pages_cached
    at.submit("second", input_ids=list(range(5, 25)), max_new=20)
    if state != "waiting":
        at.step()
    if state == "paused":
        at.scheduler.handle(PauseReq("second"))
    assert flush(at).num_live == 1
    assert at.stats().pages_cached >= cached


def test_the_tree_that_a_flush_empties_can_be_looked_at() -> None:
    at, _ = desk()

    def look() -> RadixReply:
        at.scheduler.handle(RadixReq(4, 3, 10))
        reply: RadixReply = at.to_entry.sent[-1]
        assert (at.asked_entries[-1], reply.id) == (3, 4)
        return reply

    assert look().nodes == []
    at.submit("first", input_ids=list(range(5, 25)), max_new=2)
    at.run()
    assert look().num_pages == at.stats().pages_cached == sum(node.num_pages for node in look().nodes)
    flush(at)
    assert look().nodes == []
