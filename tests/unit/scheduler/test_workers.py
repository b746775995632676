"""Requests of several entry workers: answers go to the owner, a dead one's requests end, any of them aborts all."""

from __future__ import annotations

from millstream.messages import Abort, AbortNotice, AbortOthersReply, AbortOthersReq, BatchTokenIDOutput, Delivered, StatsReq
from tests.unit.scheduler.harness import desk


def test_verdicts_and_answers_go_to_the_worker_that_asked() -> None:
    at, _ = desk()
    for entry in (0, 5):
        at.submit(f"r{entry}", entry=entry)
    at.submit("r0", entry=5)  # a rid is one request among all workers
    at.step()
    assert [(entry, message.accepted) for entry, message in at.verdicts()] == [(0, [1]), (5, [2])]
    ((entry, message),) = [(entry, message) for entry, message in at.verdicts() if message.rejected]
    assert (entry, message.rejected[0].slot, message.rejected[0].code) == (5, 3, "duplicate_rid")
    at.scheduler.handle(StatsReq(9, entry=5))
    assert (at.to_detokenizer.sent[-1].id, at.to_detokenizer.sent[-1].entry) == (9, 5)
    opened = [options for message in at.to_detokenizer.sent[:-1] for options in message.opened]
    assert {options.rid: options.entry for options in opened} == {"r0": 0, "r5": 5}


def test_the_death_of_a_worker_ends_its_requests_and_no_other() -> None:
    at, _ = desk()
    for number in range(6):
        at.submit(f"r{number}", entry=number % 2, max_new=20)
    at.step()
    at.submit("waiting", entry=1)
    assert at.scheduler.entry_gone(1) == 4
    assert at.scheduler.entry_gone(1) == 0
    at.run()
    for rid in ("r1", "r3", "r5", "waiting"):
        finish = at.finish(rid)
        assert isinstance(finish, Abort)
        assert finish.cause == "client_gone"
    assert not any(isinstance(at.finish(rid), Abort) for rid in ("r0", "r2", "r4"))
    stats = at.stats()
    assert (stats.scheduler_requests, stats.undelivered) == (0, 3)  # those of the worker that lives
    assert stats.pages_free == stats.pages_total
    at.scheduler.handle(Delivered(["r0", "r2", "r4"], entry=0))
    assert at.stats().undelivered == 0


def test_a_rid_of_a_dead_worker_may_come_again_at_once() -> None:
    at, _ = desk()
    at.submit("r", entry=1)
    at.scheduler.entry_gone(1)
    at.submit("r", entry=2)
    at.run()
    first, second = (m for m in at.to_detokenizer.sent if isinstance(m, BatchTokenIDOutput) and m.opened)
    assert (first.opened[0].entry, [row.rid for row in first.rows]) == (1, ["r"])
    assert second.opened[0].entry == 2


def test_another_workers_requests_are_aborted_by_exact_rid_call_or_prefix() -> None:
    at, _ = desk()
    for rid, call, entry in [
        ("r1", "", 0),
        ("r10", "", 0),
        ("c-0", "c", 0),
        ("c-1", "c", 0),
        ("own", "", 3),
        ("x", "", 1),
        ("again", "", 0),
    ]:
        at.submit(rid, entry=entry, call=call)
    for asked, expected, notices in [
        (AbortOthersReq(1, 3, ["r"]), [], []),
        (AbortOthersReq(2, 3, [""]), [], []),
        (AbortOthersReq(3, 3, ["r1", "own"]), ["r1"], [(0, [1])]),
        (AbortOthersReq(4, 3, ["c"]), ["c-0", "c-1"], [(0, [3, 4])]),
        (AbortOthersReq(5, 3, prefix="r"), ["r10"], [(0, [2])]),
        (AbortOthersReq(6, 3, prefix=""), ["x", "again"], [(1, [6]), (0, [7])]),
    ]:
        at.to_entry.sent.clear()
        at.asked_entries.clear()
        at.scheduler.handle(asked)
        assert list(zip(at.asked_entries, at.to_entry.sent, strict=True)) == [
            *((entry, AbortNotice(slots, "aborted")) for entry, slots in notices),
            (3, AbortOthersReply(asked.id, expected)),
        ]
    at.run()
    assert not isinstance(at.finish("own"), Abort)
