"""A decoder that fails ends the request that it fails for, never as a success, and no other."""

from __future__ import annotations

import pytest

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import Abort, FinishReason, Length, Stop
from millstream.text.tokenizer import Tokenizer
from tests.unit.detokenizer.harness import Outbox, batch, options, row


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
