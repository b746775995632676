"""DetokenizerManager: rows in, visible text out, nothing kept after a final row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import (
    Abort,
    BatchStrOutput,
    BatchTokenIDOutput,
    DecodeOptions,
    FinishReason,
    Length,
    Replay,
    ReplayedRequest,
    StatsReply,
    Stop,
    TextRow,
    Timing,
    TokenColumns,
    TokenRow,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.observe.ledger import Ledger
from millstream.text.digest import digest_of
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer
from tests.support.rows import text_rows

USAGE = Usage(prompt_tokens=1, completion_tokens=1)


class Outbox:
    """A sender that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def rows(self, rid: str) -> list[TextRow]:
        batches = [message for message in self.sent if isinstance(message, BatchStrOutput)]
        return [row for row in text_rows(batches) if row.rid == rid]

    def text(self, rid: str) -> str:
        return "".join(row.text for row in self.rows(rid))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_scripted_tokenizer()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def manager(tokenizer: Tokenizer, outbox: Outbox) -> DetokenizerManager:
    return DetokenizerManager(
        tokenizer=tokenizer, to_entry=lambda entry: outbox, ledger=Ledger("detokenizer", strict=True), clock=lambda: 5.0
    )


def row(rid: str, ids: list[int], *, held_back: int = 0, finish: FinishReason | None = None) -> TokenRow:
    timing = Timing() if finish is not None else None
    return TokenRow(rid=rid, token_ids=ids, usage=USAGE, held_back=held_back, finish=finish, timing=timing)


def options(rid: str, **how: Any) -> DecodeOptions:
    Wire.rids.discard(rid)
    return DecodeOptions(rid, slot_of(rid), **how)


def slot_of(rid: str) -> int:
    return crc32(rid.encode())


class Wire:
    """How rows that say no more than "these tokens" come: as full rows, or in columns, as the scheduler sends them."""

    columns = False
    rids: ClassVar[set[str]] = set()  # those that have had their first row, which is a full one


@pytest.fixture(params=["rows", "columns"], autouse=True)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "columns", request.param == "columns")


def batch(*rows: TokenRow, opened: list[DecodeOptions] | None = None) -> BatchTokenIDOutput:
    known = Wire.rids if Wire.columns else ()
    full = [row for row in rows if row.rid not in known or row.finish or row.held_back or not row.token_ids]
    columns = [
        TokenColumns(pack_slots([slot_of(row.rid)]), pack_ids(row.token_ids), len(row.token_ids))
        for row in rows
        if row not in full
    ]
    Wire.rids.update(row.rid for row in rows)
    return BatchTokenIDOutput(full, opened or [], columns)


def test_an_emoji_over_several_tokens_comes_in_one_piece(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    ids = tokenizer.encode("Hi 🦕!")
    manager.handle(batch(opened=[options("a")]))
    for token_id in ids:
        manager.handle(batch(row("a", [token_id])))
    manager.handle(batch(row("a", [], finish=Length(9))))
    assert outbox.text("a") == "Hi 🦕!"
    assert not any("�" in r.text for r in outbox.rows("a"))
    assert len(manager) == 0


def test_a_tail_cut_inside_a_character_is_flushed_once(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    ids = tokenizer.encode("Hi 🦕")[:-1]
    manager.handle(batch(row("a", ids), opened=[options("a")]))
    manager.handle(batch(row("a", [], finish=Length(9))))
    assert outbox.text("a") == tokenizer.decode(ids) == "Hi �"


def test_held_back_text_waits_and_comes_when_it_is_released(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", tokenizer.encode("one EN"), held_back=2), opened=[options("a")]))
    assert outbox.text("a") == "one "
    manager.handle(batch(row("a", tokenizer.encode("TER"))))
    assert outbox.text("a") == "one ENTER"


def test_text_that_stays_held_back_is_not_copied_again_with_every_row(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    pieces = [f"{number} " for number in range(100)]
    held_back = 0
    manager.handle(batch(opened=[options("a")]))
    for piece in pieces:
        held_back += len(piece)
        manager.handle(batch(row("a", tokenizer.encode(piece), held_back=held_back)))
    assert outbox.text("a") == ""
    assert manager._statuses["a"].pending == pieces
    manager.handle(batch(row("a", tokenizer.encode("end"), held_back=3)))
    assert outbox.text("a") == "".join(pieces)
    manager.handle(batch(row("a", [], finish=Length(9))))
    assert outbox.text("a") == "".join(pieces) + "end"


def test_an_abort_shows_neither_what_may_be_a_stop_nor_half_a_character(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", tokenizer.encode("one EN"), held_back=2), opened=[options("a")]))
    manager.handle(batch(row("b", tokenizer.encode("Hi 🦕")[:-1]), opened=[options("b")]))
    manager.handle(batch(row("a", [], held_back=2, finish=Abort("aborted", "")), row("b", [], finish=Abort("aborted", ""))))
    assert (outbox.text("a"), outbox.text("b")) == ("one ", "Hi ")
    assert outbox.rows("a")[-1].digest == digest_of("one ")
    assert outbox.rows("b")[-1].digest == digest_of("Hi ")


def test_a_stop_string_is_trimmed_by_its_evidence(tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(row("a", tokenizer.encode("one E"), held_back=1), opened=[options("a")]))
    manager.handle(batch(row("a", tokenizer.encode("ND two"), held_back=7, finish=Stop("END"))))
    assert outbox.text("a") == "one "
    assert outbox.rows("a")[-1].finish == Stop("END")


@pytest.mark.parametrize(("no_stop_trim", "text"), [(False, "Hello"), (True, "Hello<|im_end|>")])
def test_a_stop_token_is_shown_only_on_request(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, no_stop_trim: bool, text: str
) -> None:
    (stop,) = tokenizer.encode("<|im_end|>")
    how = options("a", skip_special_tokens=False, no_stop_trim=no_stop_trim)
    manager.handle(batch(row("a", [*tokenizer.encode("Hello"), stop], finish=Stop(stop)), opened=[how]))
    assert outbox.text("a") == text
    assert outbox.rows("a")[0].token_ids[-1] == stop


def test_options_differ_within_a_batch(tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox) -> None:
    ids = tokenizer.encode("<|im_start|>x")
    opened = [options("shown", skip_special_tokens=False), options("skipped")]
    manager.handle(batch(row("shown", ids), row("skipped", ids), opened=opened))
    assert outbox.text("shown") == "<|im_start|>x"
    assert outbox.text("skipped") == "x"


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


def test_a_decoder_that_fails_later_ends_its_request_only(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        calls = 0

        def push(self, token_ids: object) -> str:
            self.calls += 1
            if self.calls > 1:
                raise ValueError("no such bytes")
            return "fine"

    manager.handle(batch(row("good", tokenizer.encode("one")), opened=[options("good")]))
    monkeypatch.setattr(tokenizer, "incremental", lambda **how: Broken())
    manager.handle(batch(row("bad", [5]), opened=[options("bad")]))
    manager.handle(batch(row("bad", [5]), row("good", tokenizer.encode("two"))))
    assert outbox.text("good") == "onetwo"
    assert isinstance(outbox.rows("bad")[-1].finish, Abort)
    assert (len(manager), manager.dropped_rows) == (1, 0)


@pytest.mark.parametrize("reason", [None, Length(1), Stop(5), Stop("x")])
def test_a_row_that_cannot_be_decoded_ends_its_request_only_and_never_as_a_success(
    tokenizer: Tokenizer,
    manager: DetokenizerManager,
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
    reason: FinishReason | None,
) -> None:
    class Broken:
        def push(self, token_ids: object) -> str:
            raise ValueError("no such bytes")

    manager.handle(batch(opened=[options("good")]))
    monkeypatch.setattr(tokenizer, "incremental", lambda **options: Broken())
    bad = row("bad", [5], finish=reason)
    manager.handle(batch(bad, row("good", tokenizer.encode("fine")), opened=[options("bad")]))
    assert outbox.text("good") == "fine"
    finish = outbox.rows("bad")[-1].finish
    assert isinstance(finish, Abort)
    assert finish.cause == "engine_error"
    assert len(manager) == 1


def test_a_request_whose_decoder_cannot_be_made_ends_alone(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tokenizer.incremental

    def fail(**options: bool) -> object:
        if not options["skip_special_tokens"]:
            raise ValueError("no decoder")
        return make(**options)

    monkeypatch.setattr(tokenizer, "incremental", fail)
    opened = [options("a"), options("bad", skip_special_tokens=False), options("b")]
    ids = tokenizer.encode("fine")
    manager.handle(batch(row("a", ids), row("bad", ids), row("b", ids), opened=opened))
    assert (outbox.text("a"), outbox.text("b")) == ("fine", "fine")
    (ended,) = outbox.rows("bad")
    assert ended.finish == Abort("engine_error", "its tokens could not be decoded: no decoder", 500)
    assert ended.timing is None  # so the entry tells the scheduler
    assert len(manager) == 2


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


@pytest.mark.parametrize("group", [1, 4, 1024])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_witness_expects_what_was_sent(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, group: int, data: st.DataObject
) -> None:
    monkeypatch.setattr("millstream.detokenizer.witness.GROUP", group)
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size), min_size=1, max_size=30))
    skip_special_tokens = data.draw(st.booleans())
    how = options("a", skip_special_tokens=skip_special_tokens, no_stop_trim=data.draw(st.booleans()))
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: outbox)
    manager.handle(batch(opened=[how]))
    decoder, made = tokenizer.incremental(skip_special_tokens=skip_special_tokens), ""
    sent = 0
    for index, token_id in enumerate(ids):
        made += decoder.push((token_id,))
        held_back = data.draw(st.integers(0, len(made) - sent))
        sent = len(made) - held_back
        finish: FinishReason | None = None
        if index == len(ids) - 1:
            finish = data.draw(st.sampled_from([Stop(token_id), Stop("x"), Stop(None), Length(1), Abort("client_gone", "")]))
        if finish not in (None, Stop("x")):
            held_back = 0
        manager.handle(batch(row("a", [token_id], held_back=held_back, finish=finish)))
    final = outbox.rows("a")[-1]
    assert final.digest == digest_of(outbox.text("a"))
    assert all(r.digest is None for r in outbox.rows("a")[:-1])


def test_a_fault_of_a_decoder_that_depends_on_how_ids_come_does_not_stay_hidden(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def push(self, token_ids: Sequence[int]) -> str:
            return f"{len(token_ids)} ids"

        def flush(self) -> str:
            return ""

    monkeypatch.setattr(tokenizer, "incremental", lambda **options: Wrong())
    manager.handle(batch(row("a", [5]), opened=[options("a")]))
    manager.handle(batch(row("a", [5], finish=Length(2))))
    assert outbox.rows("a")[-1].digest not in (None, digest_of(outbox.text("a")))


@given(data=st.data())
def test_any_ids_cut_anyhow_give_the_one_shot_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: outbox)
    manager.handle(batch(opened=[options("a")]))
    position = 0
    while position < len(ids):
        size = data.draw(st.integers(1, 7))
        manager.handle(batch(row("a", ids[position : position + size])))
        position += size
    manager.handle(batch(row("a", [], finish=Length(len(ids)))))
    assert outbox.text("a") == tokenizer.decode(ids)


@given(data=st.data())
def test_a_replay_goes_on_where_the_client_is_and_the_rest_follows_as_ever(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Against a detokenizer that did not die: every row after the death, and the digest of the whole, are the same."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=30))
    how = options("a", skip_special_tokens=data.draw(st.booleans()), no_stop_trim=data.draw(st.booleans()))
    decoder, text = tokenizer.incremental(skip_special_tokens=how.skip_special_tokens), ""
    rows: list[TokenRow] = []
    shown = 0
    for token_id in ids:
        text += decoder.push((token_id,))
        held_back = data.draw(st.integers(0, len(text) - shown))
        shown = len(text) - held_back
        rows.append(row("a", [token_id], held_back=held_back))
    rows[-1].finish = data.draw(st.sampled_from([None, Stop("x"), Stop(ids[-1]), Length(1)]))
    if rows[-1].finish not in (None, Stop("x")):
        rows[-1].held_back = 0
    alive, first, second = Outbox(), Outbox(), Outbox()
    whole = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: alive)
    before = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: first)
    after = DetokenizerManager(tokenizer=tokenizer, to_entry=lambda entry: second)
    for manager in (whole, before):
        manager.handle(batch(opened=[how]))
    for each in rows:
        whole.handle(batch(each))
    num_received = data.draw(st.integers(0, len(rows)))  # what the client has when the first one dies
    num_sent = data.draw(st.integers(num_received, len(rows)))  # what the scheduler made until the second is there
    if num_received == len(rows) and rows[-1].finish is not None:
        num_received -= 1
    Wire.rids.discard("a")
    for each in rows[:num_received]:
        before.handle(batch(each))
    so_far = rows[max(num_sent, 1) - 1] if num_sent else row("a", [])
    replayed = TokenRow("a", ids[:num_sent], so_far.usage, so_far.held_back, so_far.finish, so_far.timing)
    after.handle(Replay([ReplayedRequest(how, replayed, num_received, len(first.text("a")))]))
    for each in rows[num_sent:]:
        after.handle(batch(each))
    first.sent += second.sent
    assert first.text("a") == alive.text("a")
    assert [i for r in first.rows("a") for i in r.token_ids] == ids
    assert len(after) == len(whole)
    if rows[-1].finish is not None:
        assert first.rows("a")[-1].digest == alive.rows("a")[-1].digest
        assert [r.finish for r in first.rows("a") if r.finish] == [rows[-1].finish]


def test_a_replay_that_brings_nothing_new_sends_nothing(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    ids = tokenizer.encode("one")
    manager.handle(Replay([ReplayedRequest(options("a"), row("a", ids), len(ids), 3)]))
    assert (outbox.sent, len(manager)) == ([], 1)
    manager.handle(batch(row("a", tokenizer.encode(" two"))))
    assert outbox.text("a") == " two"


def test_a_replay_of_what_has_ended_leaves_a_live_request_of_the_same_name_alone(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", tokenizer.encode("new")), opened=[options("a", entry=2)]))
    old = row("a", tokenizer.encode("old"), finish=Length(1))
    manager.handle(Replay([ReplayedRequest(options("a", entry=1), old, 0, 0)]))
    manager.handle(batch(row("a", [], finish=Length(1))))
    assert [(r.text, r.finish) for r in outbox.rows("a")] == [("new", None), ("old", Length(1)), ("", Length(1))]
    assert len(manager) == 0


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
