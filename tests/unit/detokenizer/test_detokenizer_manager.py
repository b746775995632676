"""DetokenizerManager: rows in, visible text out, nothing kept after a final row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    StatsReply,
    Stop,
    TextRow,
    Timing,
    TokenRow,
    Usage,
)
from millstream.text.rolling import digest_of
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer

USAGE = Usage(prompt_tokens=1, completion_tokens=1)


class Outbox:
    """A sender that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def rows(self, rid: str) -> list[TextRow]:
        return [row for message in self.sent if isinstance(message, BatchStrOutput) for row in message.rows if row.rid == rid]

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
    return DetokenizerManager(tokenizer=tokenizer, to_entry=outbox, clock=lambda: 5.0)


def row(rid: str, ids: list[int], *, held_back: int = 0, finish: FinishReason | None = None) -> TokenRow:
    timing = Timing() if finish is not None else None
    return TokenRow(rid=rid, token_ids=ids, usage=USAGE, held_back=held_back, finish=finish, timing=timing)


def batch(*rows: TokenRow, opened: list[DecodeOptions] | None = None) -> BatchTokenIDOutput:
    return BatchTokenIDOutput(rows=list(rows), opened=opened or [])


def test_an_emoji_over_several_tokens_comes_in_one_piece(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    ids = tokenizer.encode("Hi 🦕!")
    manager.handle(batch(opened=[DecodeOptions("a")]))
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
    manager.handle(batch(row("a", ids), opened=[DecodeOptions("a")]))
    manager.handle(batch(row("a", [], finish=Length(9))))
    assert outbox.text("a") == tokenizer.decode(ids) == "Hi �"


def test_held_back_text_waits_and_comes_when_it_is_released(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", tokenizer.encode("one EN"), held_back=2), opened=[DecodeOptions("a")]))
    assert outbox.text("a") == "one "
    manager.handle(batch(row("a", tokenizer.encode("TER"))))
    assert outbox.text("a") == "one ENTER"


def test_a_stop_string_is_trimmed_by_its_evidence(tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(row("a", tokenizer.encode("one E"), held_back=1), opened=[DecodeOptions("a")]))
    manager.handle(batch(row("a", tokenizer.encode("ND two"), held_back=7, finish=Stop("END"))))
    assert outbox.text("a") == "one "
    assert outbox.rows("a")[-1].finish == Stop("END")


@pytest.mark.parametrize(("no_stop_trim", "text"), [(False, "Hello"), (True, "Hello<|im_end|>")])
def test_a_stop_token_is_shown_only_on_request(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, no_stop_trim: bool, text: str
) -> None:
    (stop,) = tokenizer.encode("<|im_end|>")
    options = DecodeOptions("a", skip_special_tokens=False, no_stop_trim=no_stop_trim)
    manager.handle(batch(row("a", [*tokenizer.encode("Hello"), stop], finish=Stop(stop)), opened=[options]))
    assert outbox.text("a") == text
    assert outbox.rows("a")[0].token_ids[-1] == stop


def test_options_differ_within_a_batch(tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox) -> None:
    ids = tokenizer.encode("<|im_start|>x")
    opened = [DecodeOptions("shown", skip_special_tokens=False), DecodeOptions("skipped")]
    manager.handle(batch(row("shown", ids), row("skipped", ids), opened=opened))
    assert outbox.text("shown") == "<|im_start|>x"
    assert outbox.text("skipped") == "x"


def test_rows_of_unknown_or_ended_requests_are_counted_and_dropped(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox
) -> None:
    manager.handle(batch(row("a", [], finish=Abort("client_gone", "gone")), opened=[DecodeOptions("a")]))
    manager.handle(batch(row("a", [5]), row("never", [5])))
    assert manager.dropped_rows == 2
    assert [r.rid for message in outbox.sent for r in message.rows] == ["a"]


def test_a_row_that_cannot_be_decoded_ends_its_request_only(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def push(self, token_ids: object) -> str:
            raise ValueError("no such bytes")

    manager.handle(batch(opened=[DecodeOptions("good")]))
    monkeypatch.setattr(tokenizer, "incremental", lambda **options: Broken())
    manager.handle(batch(row("bad", [5]), row("good", tokenizer.encode("fine")), opened=[DecodeOptions("bad")]))
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
    opened = [DecodeOptions("a"), DecodeOptions("bad", skip_special_tokens=False), DecodeOptions("b")]
    ids = tokenizer.encode("fine")
    manager.handle(batch(row("a", ids), row("bad", ids), row("b", ids), opened=opened))
    assert (outbox.text("a"), outbox.text("b")) == ("fine", "fine")
    (ended,) = outbox.rows("bad")
    assert ended.finish == Abort("engine_error", "its tokens could not be decoded: no decoder", 500)
    assert ended.timing is None  # so the entry tells the scheduler
    assert len(manager) == 2


def test_a_full_table_ends_only_the_request_that_finds_it_full(tokenizer: Tokenizer, outbox: Outbox) -> None:
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=outbox, max_states=2)
    opened = [DecodeOptions(rid) for rid in "abc"]
    ids = tokenizer.encode("fine")
    manager.handle(batch(row("a", ids), row("b", ids), row("c", ids), opened=opened))
    (refusal,) = outbox.rows("c")
    assert refusal.finish == Abort(
        "engine_error", "The detokenizer has no room for another request: max_detokenizer_states is 2.", 503
    )
    assert (refusal.text, refusal.token_ids, refusal.usage, refusal.timing) == ("", [], USAGE, None)
    manager.handle(batch(row("c", ids), row("a", ids, finish=Length(9))))
    assert (manager.dropped_rows, len(manager)) == (2, 1)
    manager.handle(batch(row("c", [], finish=Abort("engine_error", "told", 500)), row("d", ids), opened=[DecodeOptions("d")]))
    assert (outbox.text("a"), outbox.text("b"), outbox.text("d")) == ("finefine", "fine", "fine")
    assert [r.finish for r in outbox.rows("c")] == [refusal.finish]
    assert (manager.dropped_rows, len(manager)) == (3, 2)


def test_the_final_row_carries_the_time_its_text_was_made(manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(row("a", [], finish=Length(1)), opened=[DecodeOptions("a")]))
    timing = outbox.rows("a")[0].timing
    assert timing is not None
    assert timing.detokenized == 5.0


def test_a_snapshot_passes_through_with_our_counts(manager: DetokenizerManager, outbox: Outbox) -> None:
    manager.handle(batch(opened=[DecodeOptions("a"), DecodeOptions("b")]))
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
    options = DecodeOptions("a", skip_special_tokens=skip_special_tokens, no_stop_trim=data.draw(st.booleans()))
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=outbox)
    manager.handle(batch(opened=[options]))
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
    manager.handle(batch(row("a", [5]), opened=[DecodeOptions("a")]))
    manager.handle(batch(row("a", [5], finish=Length(2))))
    assert outbox.rows("a")[-1].digest not in (None, digest_of(outbox.text("a")))


@given(data=st.data())
def test_any_ids_cut_anyhow_give_the_one_shot_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    outbox = Outbox()
    manager = DetokenizerManager(tokenizer=tokenizer, to_entry=outbox)
    manager.handle(batch(opened=[DecodeOptions("a")]))
    position = 0
    while position < len(ids):
        size = data.draw(st.integers(1, 7))
        manager.handle(batch(row("a", ids[position : position + size])))
        position += size
    manager.handle(batch(row("a", [], finish=Length(len(ids)))))
    assert outbox.text("a") == tokenizer.decode(ids)
