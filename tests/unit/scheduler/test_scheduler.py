"""Scheduler: one end for every request, as its rows, its limits and its client say, and everything given back."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.messages import Abort, AdmissionOutput, BatchTokenIDOutput, Length, StatsReply, StatsReq, Stop
from tests.unit.scheduler.harness import EOS, assert_nothing_held, desk, pieces, tokenizer


def test_a_request_is_accepted_before_its_first_row_and_ends_once() -> None:
    at, _ = desk()
    order: list[Any] = []
    at.to_entry.sent = order  # type: ignore[assignment]
    at.to_detokenizer.sent = order
    at.submit("r", max_new=2, ignore_eos=True)
    at.run()
    assert [type(message) for message in order] == [AdmissionOutput, BatchTokenIDOutput, BatchTokenIDOutput]
    assert at.finish("r") == Length(2)
    assert_nothing_held(at)


def test_an_idle_scheduler_has_no_work_and_sends_nothing() -> None:
    at, _ = desk()
    assert not at.step()
    assert at.to_detokenizer.sent == at.to_entry.sent == []


def test_tokens_after_eos_in_the_same_step_are_dropped_and_not_counted() -> None:
    at = pieces([5, EOS, 6])
    at.submit("r", max_new=50)
    at.run()
    (row,) = at.rows("r")
    assert (row.token_ids, row.finish, row.usage.completion_tokens) == ([5, EOS], Stop(EOS), 2)


def test_an_answer_cut_by_the_limit_says_length() -> None:
    at = pieces([5], [6], [7], [8])
    at.submit("r", max_new=3)
    at.run()
    assert (at.finish("r"), at.rows("r")[-1].usage.completion_tokens) == (Length(3), 3)


def test_the_last_row_counts_all_tokens_though_it_brings_only_the_last() -> None:
    at = pieces([5], [6], [7], [EOS])
    at.submit("r", max_new=9)
    at.run()
    last = at.rows("r")[-1]
    assert (last.token_ids, last.usage.completion_tokens) == ([EOS], 4)


def test_the_earliest_of_two_stop_strings_in_one_step_ends_the_request() -> None:
    ids = tokenizer().encode("ab END cd STOP ef", add_special_tokens=False)
    at = pieces(ids)
    at.submit("r", max_new=99, stop=("STOP", "END"))
    at.run()
    (row,) = at.rows("r")
    assert row.finish == Stop("END")
    text = tokenizer().decode(row.token_ids)
    assert text[: len(text) - row.held_back] == "ab "


def test_after_a_match_nothing_more_is_computed() -> None:
    ids = [tokenizer().encode(piece, add_special_tokens=False) for piece in ("one,", " two,", " five", " six,", " seven")]
    at = pieces(*ids)
    at.submit("r", max_new=99, stop=("five",))
    assert at.run() == 3
    assert at.tokens("r") == ids[0] + ids[1] + ids[2]


def test_an_abort_matches_its_rid_exactly() -> None:
    at, _ = desk()
    for rid in ("batch_1", "batch_10", "other"):
        at.submit(rid, max_new=5, ignore_eos=True)
    at.step()
    for rid in ("batch_1", "", "batch", "unknown"):
        at.abort(rid)
    at.step()
    assert isinstance(at.finish("batch_1"), Abort)
    assert at.finish("batch_10") is at.finish("other") is None
    at.run()
    assert at.finish("batch_10") == at.finish("other") == Length(5)


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["waiting", "prefilling", "decoding"])
def test_an_abort_ends_a_request_within_the_step_whatever_it_was_doing(steps: int) -> None:
    at, _ = desk(chunked_prefill_size=8)
    at.submit("r", range(300, 315), max_new=9, ignore_eos=True)
    for _ in range(steps):
        at.step()
    at.abort("r")
    at.abort("r")
    assert not at.step()
    assert at.finish("r") == Abort("client_gone", "The request was aborted.", 499)
    assert_nothing_held(at)


def test_a_rid_can_be_used_again_once_its_request_ended() -> None:
    at, _ = desk()
    at.submit("r", max_new=1)
    at.submit("r", max_new=1)
    at.run()
    assert [(item.status, item.code) for item in at.rejected()] == [(409, "duplicate_rid")]
    assert len(at.rows("r")) == 1
    at.submit("r", max_new=1)
    at.run()
    assert at.accepted() == ["r", "r"]


def test_a_full_queue_refuses_the_newcomer_alone() -> None:
    at, _ = desk(max_running_requests=1, max_queued_requests=1)
    for rid in "abc":
        at.submit(rid, max_new=2)
    at.run()
    (refused,) = at.rejected()
    assert (refused.rid, refused.status, refused.type, refused.retry_after_s) == ("c", 429, "overloaded_error", 1)
    assert at.accepted() == ["a", "b"]
    assert at.rows("c") == []


def test_stops_are_banned_until_the_minimum_and_limits_count() -> None:
    at, executor = desk()
    at.submit("r", max_new=4, min_new_tokens=2, stop_token_ids=(9,), ignore_eos=False)
    at.run()
    banned = executor.banned["r"]
    assert banned[:2] == [(EOS, 9), (EOS, 9)]
    assert set(banned[2:]) <= {()}


def test_stamps_are_in_order_and_only_the_last_row_has_them() -> None:
    at, _ = desk()
    at.submit("r", max_new=3, ignore_eos=True)
    at.run()
    rows = at.rows("r")
    assert [row.timing is None for row in rows] == [True, True, False]
    timing = rows[-1].timing
    assert timing is not None
    assert 0 < timing.queued < timing.admitted < timing.prefilled < timing.decoded


def test_stats_come_in_order_with_what_they_count() -> None:
    at, _ = desk(max_running_requests=1)
    for rid in "ab":
        at.submit(rid, max_new=4)
    at.step()
    at.abort("a")
    at.scheduler.handle(StatsReq(7))
    final, reply = at.to_detokenizer.sent[-2:]
    assert final.rows[0].finish is not None
    assert isinstance(reply, StatsReply)
    assert (reply.id, reply.scheduler_requests, reply.waiting, reply.running, reply.steps) == (7, 1, 1, 0, 1)


def test_going_down_ends_every_request() -> None:
    at, _ = desk(max_running_requests=1)
    for rid in "ab":
        at.submit(rid, max_new=4)
    at.step()
    at.scheduler.close()
    for rid in "ab":
        assert at.finish(rid) == Abort("drain", "The server is shutting down.", 503)
    assert_nothing_held(at)


def test_a_rid_that_is_used_again_at_once_does_not_share_a_batch_with_its_first_end() -> None:
    at, _ = desk()
    at.submit("r", max_new=9)
    at.step()
    at.abort("r")
    at.submit("r", max_new=9)
    at.step()
    batches = [message for message in at.to_detokenizer.sent if isinstance(message, BatchTokenIDOutput)]
    # the detokenizer makes the states of a batch before it looks at its rows
    assert [(len(batch.opened), [row.finish is not None for row in batch.rows]) for batch in batches] == [
        (1, [False]),
        (0, [True]),
        (1, [False]),
    ]
