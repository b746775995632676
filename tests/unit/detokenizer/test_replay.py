"""A replay to a new detokenizer: it goes on where the client is, and touches no other request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.detokenizer.detokenizer_manager import DetokenizerManager
from millstream.messages import Length, Replay, ReplayedRequest, Stop, TokenRow
from millstream.messages.details import Logprobs, RowDetails
from millstream.text.tokenizer import Tokenizer
from tests.unit.detokenizer.harness import Outbox, Wire, batch, options, row


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


@pytest.mark.parametrize("num_received", [0, 1, 2, 3])
def test_details_go_on_where_the_client_is_and_the_prompts_come_with_the_first_row_alone(
    tokenizer: Tokenizer, manager: DetokenizerManager, outbox: Outbox, num_received: int
) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False)[:3]
    told = Logprobs([-1.0, -2.0, -3.0], [[1], [2], [3]], [[-0.1], [-0.2], [-0.3]], [[], [], []])
    prompt = Logprobs([-9.0], [[4]], [[-8.0]], [[]])
    final = row("a", ids, finish=Length(3))
    final.details = RowDetails(told, prompt, b"state")
    manager.handle(Replay([ReplayedRequest(options("a"), final, num_received, 0)]))
    (made,) = outbox.rows("a")
    assert made.details == RowDetails(told.part(num_received), None if num_received else prompt, b"state")
    assert len(made.details.logprobs.chosen) == len(made.token_ids) == 3 - num_received  # type: ignore[union-attr]
