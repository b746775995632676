"""DetokenizerManager: rows to the worker that owns the request, counts, and nothing kept after a final row."""

from __future__ import annotations

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import Abort, BatchTokenIDOutput, Length, StatsReply, Stop, TokenColumns
from millstream.messages.columns import pack_ids, pack_slots
from millstream.observe.ledger import Ledger
from millstream.text.tokenizer import Tokenizer
from tests.support.rows import text_rows
from tests.unit.detokenizer.harness import Outbox, batch, options, row, slot_of


def test_rows_of_unknown_or_ended_requests_are_counted_and_dropped(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", [], finish=Abort("client_gone", "gone")), opened=[options("a")]))
    manager.handle(batch(row("a", [5]), row("never", [5])))
    assert manager.dropped_rows == 2
    assert [r.rid for r in text_rows(outbox.sent)] == ["a"]


def test_columns_keep_the_rows_of_known_requests(tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(row("a", tokenizer.encode("A")), row("b", tokenizer.encode("B")), opened=[options("a"), options("b")]))
    ids = [*tokenizer.encode("x"), 5, *tokenizer.encode("y")]
    slots = pack_slots([slot_of("a"), slot_of("never"), slot_of("b")])
    manager.handle(BatchTokenIDOutput([], [], [TokenColumns(slots, pack_ids(ids), 1)]))
    assert (outbox.text("a"), outbox.text("b"), manager.dropped_rows) == ("Ax", "By", 1)


def test_a_full_table_ends_only_the_request_that_finds_it_full(tokenizer: Tokenizer, outbox: Outbox) -> None:
    manager = DetokenizerManager(
        tokenizer=tokenizer, to_entry=lambda entry: outbox, max_states=2, ledger=Ledger("detokenizer", strict=True)
    )
    opened = [options(rid) for rid in "abc"]
    ids = tokenizer.encode("fine")
    manager.handle(batch(row("a", ids), row("b", ids), row("c", ids), opened=opened))
    (refusal,) = outbox.rows("c")
    assert refusal.finish == Abort(
        "engine_error", "The detokenizer has no room for another request: max_detokenizer_states is 2.", 503
    )
    assert (refusal.text, refusal.token_ids, refusal.usage, refusal.timing) == ("", [], None, None)
    manager.handle(batch(row("c", ids), row("a", ids, finish=Length(9))))
    assert (manager.dropped_rows, len(manager)) == (2, 1)
    manager.handle(batch(row("c", [], finish=Abort("engine_error", "told", 500)), row("d", ids), opened=[options("d")]))
    assert (outbox.text("a"), outbox.text("b"), outbox.text("d")) == ("finefine", "fine", "fine")
    assert [r.finish for r in outbox.rows("c")] == [refusal.finish]
    assert (manager.dropped_rows, len(manager)) == (3, 2)


def test_the_final_row_carries_the_time_its_text_was_made(manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(row("a", [], finish=Length(1)), opened=[options("a")]))
    timing = outbox.rows("a")[0].timing
    assert timing is not None
    assert timing.detokenized == 5.0


def test_a_snapshot_passes_through_with_our_counts(manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(opened=[options("a"), options("b")]))
    manager.handle(
        StatsReply(
            id=1,
            scheduler_requests=2,
            waiting=0,
            running=2,
            pages_total=9,
            pages_free=7,
            pages_cached=0,
            steps=3,
            retractions=0,
        )
    )
    (reply,) = outbox.sent
    assert reply.detokenizer_requests == 2
    assert reply.pages_free == 7


def test_rows_go_to_the_worker_that_owns_the_request_and_counts_to_the_one_that_asks(tokenizer: Tokenizer) -> None:
    outboxes = {1: Outbox(), 2: Outbox()}
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=outboxes.__getitem__)
    ids = tokenizer.encode("fine")
    opened = [options("a", entry=1), options("b", entry=2), options("c", entry=1)]
    manager.handle(batch(row("a", ids), row("b", ids), row("c", ids), opened=opened))
    assert [[r.rid for m in outboxes[number].sent for r in m.rows] for number in (1, 2)] == [["a", "c"], ["b"]]
    assert all(len(outbox.sent) == 1 for outbox in outboxes.values())
    manager.handle(
        StatsReply(
            id=1, entry=2, scheduler_requests=3, waiting=0, running=3, pages_total=9, pages_free=7, pages_cached=0, steps=3,
            retractions=0,
        )
    )  # fmt: skip
    assert outboxes[2].sent[-1].detokenizer_requests == 3
    assert len(outboxes[1].sent) == 1


def test_the_states_of_a_dead_scheduler_are_dropped(tokenizer: Tokenizer, manager: DetokenizerManager) -> None:
    manager.handle(batch(opened=[options("a"), options("b")]))
    manager.scheduler_gone()
    assert len(manager) == 0
    manager.handle(batch(row("a", [5]), opened=[options("a")]))
    assert (len(manager), manager.dropped_rows) == (1, 0)


def test_nothing_is_kept_of_a_worker_without_requests_once_another_comes(tokenizer: Tokenizer) -> None:
    outboxes: dict[int, Outbox] = {}

    def to_entry(number: int) -> Outbox:
        return outboxes.setdefault(number, Outbox())

    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=to_entry, ledger=Ledger("detokenizer", strict=True))
    manager.handle(
        batch(row("a", [5], finish=Stop(None)), row("b", [5]), opened=[options("a", entry=0), options("b", entry=1)])
    )
    assert set(manager._entries) == {0, 1}
    manager.handle(batch(row("c", [5]), opened=[options("c", entry=2)]))
    assert set(manager._entries) == {1, 2}
    manager.handle(batch(row("d", [5], finish=Stop(None)), opened=[options("d", entry=0)]))  # it was only idle
    assert [row.rid for row in outboxes[0].rows("a") + outboxes[0].rows("d")] == ["a", "d"]
    assert set(manager._entries) == {0, 1, 2}
