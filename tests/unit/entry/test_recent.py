"""The ring of requests that have ended is bounded and keeps nothing that its readers may not see."""

from __future__ import annotations

from millstream.entry.recent import MAX_BYTES, Recent
from millstream.messages import RequestRecord, Timing, Usage


def record(rid: str) -> RequestRecord:
    return RequestRecord(
        rid=rid,
        call=rid,
        api="chat",
        model="m",
        state="ended",
        cause="stop",
        received_at=1.0,
        until=2.0,
        timing=Timing(),
        usage=Usage(1, 1),
    )


def test_the_oldest_makes_room_and_the_newest_come_first() -> None:
    recent = Recent(3)
    for number in range(10):
        recent.add(record(f"r{number}"))
    assert [each.rid for each in recent] == ["r9", "r8", "r7"]
    assert list(recent)[0] == record("r9")
    assert 0 < recent.num_bytes < 3 * 200


def test_a_record_out_of_all_proportion_is_not_kept() -> None:
    recent = Recent(3)
    recent.add(record("r" * MAX_BYTES))
    assert (len(recent), recent.num_bytes) == (0, 0)


def test_a_ring_of_nothing_keeps_nothing() -> None:
    recent = Recent(0)
    assert not recent.is_on
    recent.add(record("r"))
    assert len(recent) == 0
