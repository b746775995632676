"""The digest of a final row: of the text that was sent, and of another one where a decoder was wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import Abort, FinishReason, Length, Stop
from millstream.text.digest import digest_of
from millstream.text.tokenizer import Tokenizer
from tests.unit.detokenizer.harness import Outbox, batch, options, row


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
