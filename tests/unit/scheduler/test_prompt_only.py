"""Requests that compute their prompt and make nothing: one final row, everything given back, the prompt known to others."""

from __future__ import annotations

import pytest

from millstream.messages import Abort, Length, Received, Replay, ReplayReq, Usage
from tests.unit.scheduler.harness import assert_nothing_held, desk

PROMPT = list(range(10, 30))  # five pages


def test_it_ends_with_one_row_without_a_token_once_its_prompt_is_computed() -> None:
    at, executor = desk(chunked_prefill_size=8)
    at.submit("r", PROMPT, max_new=0)
    at.run()
    assert executor.batches == [[("r", 0, 8)], [("r", 8, 16)], [("r", 16, 20)]]
    (row,) = at.rows("r")
    assert (row.token_ids, row.finish, row.usage) == ([], Length(0), Usage(20, 0))
    assert row.timing is not None
    assert 0 < row.timing.admitted < row.timing.prefilled == row.timing.decoded
    assert_nothing_held(at)


def test_what_it_computed_is_known_to_those_that_follow() -> None:
    at, executor = desk()
    at.submit("r", PROMPT, max_new=0)
    at.run()
    at.submit("next", [*PROMPT, 5], max_new=2, ignore_eos=True)
    at.run()
    assert executor.batches[1] == [("next", 20, 21)]
    assert at.rows("next")[-1].usage.cached_tokens == 20


def test_its_prompt_may_fill_the_context_and_the_whole_pool() -> None:
    at, _ = desk(num_pages=5, page_size=4)
    at.submit("r", PROMPT, max_new=0)
    at.submit("long", [*PROMPT, 5], max_new=0)
    at.submit("answer", PROMPT, max_new=1)
    at.run()
    assert at.finish("r") == Length(0)
    assert [refused.code for refused in at.rejected()] == ["context_length_exceeded"] * 2
    assert_nothing_held(at)


def test_less_than_nothing_is_refused() -> None:
    at, _ = desk()
    at.submit("r", max_new=-1)
    at.step()
    assert [refused.param for refused in at.rejected()] == ["max_tokens"]


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 19, 20])
def test_the_choices_of_a_call_compute_what_is_no_whole_page_side_by_side(length: int, share_prefixes: bool) -> None:
    at, executor = desk(share_prefixes=share_prefixes)
    for choice in range(4):
        at.submit(f"c-{choice}", PROMPT[:length], max_new=0, call="c")
    at.run()
    assert executor.num_copies == 0
    assert len(executor.batches) == (1 if length <= 4 else 2)  # the first page, if there is one, is computed once
    assert [at.finish(f"c-{choice}") for choice in range(4)] == [Length(0)] * 4
    assert_nothing_held(at)


def test_it_is_thrown_back_to_the_queue_like_others_and_still_ends() -> None:
    at, _ = desk(num_pages=6, page_size=4, chunked_prefill_size=4)
    at.submit("first", [5] * 4, max_new=12, ignore_eos=True)
    at.step()
    at.submit("r", PROMPT[:12], max_new=0)
    at.run()
    assert at.finish("first") == Length(12)
    assert at.finish("r") == Length(0)
    assert_nothing_held(at)


def test_an_abort_or_a_fault_ends_it_before_its_prompt_does() -> None:
    at, executor = desk(chunked_prefill_size=8)
    for rid in ("gone", "bad", "late"):
        at.submit(rid, [rid == "bad", *PROMPT], max_new=0, deadline=25.0 if rid == "late" else None)
    executor.fail_rids = {"bad"}
    at.step()
    at.abort("gone")
    at.scheduler._clock.now = 30.0  # type: ignore[attr-defined]
    at.run()
    ends = [at.finish(rid) for rid in ("gone", "bad", "late")]
    assert [end.cause if isinstance(end, Abort) else end for end in ends] == ["client_gone", "engine_error", "deadline"]
    assert_nothing_held(at)


def test_a_detokenizer_that_dies_with_its_row_costs_it_nothing() -> None:
    at, _ = desk()
    at.submit("r", PROMPT, max_new=0)
    at.run()
    at.to_detokenizer.connection = 2
    at.scheduler.handle(ReplayReq([Received("r", 0, 0)], at.to_detokenizer.receiver_pid))
    replay = at.to_detokenizer.sent[-1]
    assert isinstance(replay, Replay)
    assert replay.requests[0].row == at.rows("r")[0]
