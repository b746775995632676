"""Rows in, visible text out: whole characters, without what is held back or was a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import Abort, Length, Stop
from millstream.text.digest import digest_of
from millstream.text.tokenizer import Tokenizer
from tests.unit.detokenizer.harness import Outbox, batch, options, row


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
