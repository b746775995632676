"""Scheduler: one end for every request, faults that stay where they are, everything given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.errors import InvariantError
from millstream.execution.interface import ForwardBatch, ForwardOutput
from millstream.messages import (
    Abort,
    AbortNotice,
    AbortOthersReply,
    AbortOthersReq,
    AdmissionOutput,
    BatchTokenIDOutput,
    Delivered,
    Length,
    StatsReply,
    StatsReq,
    Stop,
)
from millstream.observe.ledger import Ledger
from tests.unit.scheduler.harness import EOS, CheckingExecutor, Desk, PiecesExecutor, tokenizer


def desk(
    *, num_pages: int = 64, page_size: int = 4, share_prefixes: bool = True, **limits: int
) -> tuple[Desk, CheckingExecutor]:
    executor = CheckingExecutor(num_pages=num_pages, page_size=page_size)
    return Desk(executor, share_prefixes=share_prefixes, **limits), executor


def pieces(*steps: list[int]) -> Desk:
    return Desk(PiecesExecutor(steps))


def assert_nothing_held(at: Desk) -> None:
    stats = at.stats()
    assert (stats.scheduler_requests, stats.waiting, stats.running) == (0, 0, 0)
    assert stats.pages_free == stats.pages_total
    at.scheduler.audit()


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


def test_a_request_longer_than_the_pool_is_refused() -> None:
    at, _ = desk(num_pages=2, page_size=4)
    at.submit("r", [1] * 6, max_new=3)
    at.submit("fits", [1] * 6, max_new=2)
    at.run()
    assert [(item.rid, item.status, item.code) for item in at.rejected()] == [("r", 400, "context_length_exceeded")]
    assert at.finish("fits") is not None


def test_identical_prompts_are_prefilled_once() -> None:
    at, executor = desk()
    for number in range(4):
        at.submit(f"r{number}", range(300, 333), max_new=2, ignore_eos=True)
    at.run()
    computed = sum(end - start for batch in executor.batches for _, start, end in batch)
    assert computed == 33 + 3 * 1 + 4 * 1
    assert [at.rows(f"r{number}")[-1].usage.cached_tokens for number in range(4)] == [0, 32, 32, 32]


def test_a_conversation_s_next_turn_reuses_prompt_and_answer() -> None:
    at, _ = desk()
    at.submit("one", range(300, 310), max_new=7, ignore_eos=True)
    at.run()
    at.submit("two", [*range(300, 310), *at.tokens("one"), 5], max_new=1)
    at.run()
    assert at.rows("two")[-1].usage.cached_tokens == 16  # the last answered token was never computed


def test_namespaces_do_not_share() -> None:
    at, _ = desk()
    for namespace in ("a", "b", "a"):
        at.submit("r", range(300, 317), max_new=1, namespace=namespace)
        at.run()
    assert [row.usage.cached_tokens for row in at.rows("r")] == [0, 0, 16]


def test_without_the_prefix_cache_everything_is_computed() -> None:
    at, _ = desk(share_prefixes=False)
    for rid in "ab":
        at.submit(rid, range(300, 317), max_new=2)
    at.run()
    assert at.rows("b")[-1].usage.cached_tokens == 0
    assert at.stats().pages_cached == 0


def test_a_small_pool_retracts_and_every_request_still_gets_its_tokens() -> None:
    at, executor = desk(num_pages=6, page_size=4)
    for number in range(3):
        at.submit(f"r{number}", [number + 5] * 4, max_new=16, ignore_eos=True)
    at.run()
    assert at.stats().retractions > 0
    for number in range(3):
        alone, _ = desk()
        alone.submit("r", [number + 5] * 4, max_new=16, ignore_eos=True)
        alone.run()
        assert at.tokens(f"r{number}") == alone.tokens("r")
        assert at.finish(f"r{number}") == Length(16)
        assert at.rows(f"r{number}")[-1].usage.cached_tokens == 0  # its own KV, found again, is no cache hit
    first_rows = [batch[0][0] for batch in executor.batches]
    assert first_rows == sorted(first_rows)  # the oldest is always on, so they end in order of arrival
    assert_nothing_held(at)


def test_a_retracted_request_is_not_refused_by_a_queue_that_filled_meanwhile() -> None:
    at, _ = desk(num_pages=6, page_size=4, max_running_requests=3, max_queued_requests=1)
    for number in range(3):
        at.submit(f"r{number}", [number + 5] * 4, max_new=16, ignore_eos=True)
    at.step()
    at.submit("late", max_new=1)
    at.run()
    assert at.stats().retractions > 0
    assert at.rejected() == []
    assert all(at.finish(f"r{number}") == Length(16) for number in range(3))


@pytest.mark.parametrize(
    ("broken", "ended"),
    [
        pytest.param(lambda rids: len(rids) > 1, "", id="together only: nobody ends"),
        pytest.param(lambda rids: "a" in rids, "a", id="by one request: it ends, the others go on"),
        pytest.param(lambda rids: rids != ["c"], "ab", id="for all of the step: they end, the next goes on"),
    ],
)
def test_a_failed_step_ends_only_requests_that_fail_alone_and_the_loop_goes_on(
    broken: Callable[[list[str]], bool], ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    at, executor = desk(max_running_requests=2)
    whole, alone = executor.forward, desk()[0]
    for rid in "abc":
        for each in (at, alone):
            each.submit(rid, range(300, 309), max_new=3, ignore_eos=True)
    at.step()
    at.step()

    def fail(batch: ForwardBatch) -> ForwardOutput:
        if broken([row.rid for row in batch.rows]):
            raise RuntimeError("no more memory")
        return whole(batch)

    executor.forward = fail  # type: ignore[method-assign]
    at.run()
    alone.run()
    for rid in "abc":
        if rid in ended:
            assert at.finish(rid) == Abort("engine_error", "The engine failed: no more memory", 500)
        else:
            assert (at.finish(rid), at.tokens(rid)) == (Length(3), alone.tokens(rid))
    assert "a step of 2 requests failed" in caplog.text
    assert_nothing_held(at)


def test_a_bad_row_ends_alone() -> None:
    at, executor = desk()
    for rid in "ab":
        at.submit(rid, max_new=3, ignore_eos=True)
    executor.fail_rids = {"a"}
    at.run()
    assert at.finish("a") == Abort("engine_error", "bad row", 500)
    assert at.finish("b") == Length(3)


def test_an_answer_of_the_wrong_length_is_a_failed_step(caplog: pytest.LogCaptureFixture) -> None:
    at, executor = desk()
    at.submit("r")
    executor.forward = lambda batch: type("Output", (), {"token_ids": [], "errors": {}})()  # type: ignore[method-assign]
    at.run()
    assert isinstance(at.finish("r"), Abort)
    assert "failed" in caplog.text


def test_tokens_that_cannot_be_settled_end_one_request(caplog: pytest.LogCaptureFixture) -> None:
    at, _ = desk()
    for rid in "ab":
        at.submit(rid, max_new=3, ignore_eos=True)

    def fail(new_ids: object, count: int) -> None:
        raise ValueError("unreadable")

    at.scheduler._live["a"].end_rule.settle = fail  # type: ignore[assignment,method-assign]
    at.run()
    assert at.finish("a") == Abort("engine_error", "The engine failed: unreadable", 500)
    assert at.finish("b") == Length(3)
    assert "could not be settled" in caplog.text


def test_a_message_that_breaks_ends_its_own_request_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, _ = desk()
    at.submit("a", max_new=2, ignore_eos=True)

    def fail(**options: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("millstream.scheduler.scheduler.EndRule", fail)
    at.submit("b")
    monkeypatch.undo()
    at.run()
    (refused,) = at.rejected()
    assert (refused.rid, refused.status, refused.type) == ("b", 500, "server_error")
    assert at.finish("a") == Length(2)
    assert "request b could not be taken on" in caplog.text


def test_a_row_with_nothing_yet_runs_again_and_loses_nothing() -> None:
    at, executor = desk()
    at.submit("r", range(300, 308), max_new=2, ignore_eos=True)
    executor.nothing_for = {"r"}
    at.step()
    at.step()
    executor.nothing_for = set()
    at.run()
    assert executor.batches[:3] == [[("r", 0, 8)], [("r", 7, 8)], [("r", 7, 8)]]
    assert len(at.rows("r")) == 2


def test_a_prompt_whose_leader_has_no_token_yet_starts_all_the_same() -> None:
    at, executor = desk()
    at.submit("slow", range(300, 320), max_new=2)
    at.submit("next", range(300, 320), max_new=2)
    executor.nothing_for = {"slow"}
    at.step()
    at.step()
    assert len(at.rows("next")) == 1


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


def test_a_page_that_leaks_is_noticed_when_nothing_runs() -> None:
    at, _ = desk()
    at.pool.grow(at.pool.open(Ledger("other").open("ghost"), "", [1]), 1)
    with pytest.raises(InvariantError):
        at.scheduler.step()


def test_verdicts_and_answers_go_to_the_worker_that_asked() -> None:
    at, _ = desk()
    for entry in (0, 5):
        at.submit(f"r{entry}", entry=entry)
    at.submit("r0", entry=5)  # a rid is one request among all workers
    at.step()
    assert [(entry, message.accepted) for entry, message in at.verdicts()] == [(0, [1]), (5, [2])]
    ((entry, message),) = [(entry, message) for entry, message in at.verdicts() if message.rejected]
    assert (entry, message.rejected[0].slot, message.rejected[0].code) == (5, 3, "duplicate_rid")
    at.scheduler.handle(StatsReq(9, entry=5))
    assert (at.to_detokenizer.sent[-1].id, at.to_detokenizer.sent[-1].entry) == (9, 5)
    opened = [options for message in at.to_detokenizer.sent[:-1] for options in message.opened]
    assert {options.rid: options.entry for options in opened} == {"r0": 0, "r5": 5}


def test_the_death_of_a_worker_ends_its_requests_and_no_other() -> None:
    at, _ = desk()
    for number in range(6):
        at.submit(f"r{number}", entry=number % 2, max_new=20)
    at.step()
    at.submit("waiting", entry=1)
    assert at.scheduler.entry_gone(1) == 4
    assert at.scheduler.entry_gone(1) == 0
    at.run()
    for rid in ("r1", "r3", "r5", "waiting"):
        finish = at.finish(rid)
        assert isinstance(finish, Abort)
        assert finish.cause == "client_gone"
    assert not any(isinstance(at.finish(rid), Abort) for rid in ("r0", "r2", "r4"))
    stats = at.stats()
    assert (stats.scheduler_requests, stats.undelivered) == (0, 3)  # those of the worker that lives
    assert stats.pages_free == stats.pages_total
    at.scheduler.handle(Delivered(["r0", "r2", "r4"], entry=0))
    assert at.stats().undelivered == 0


def test_a_rid_of_a_dead_worker_may_come_again_at_once() -> None:
    at, _ = desk()
    at.submit("r", entry=1)
    at.scheduler.entry_gone(1)
    at.submit("r", entry=2)
    at.run()
    first, second = (m for m in at.to_detokenizer.sent if isinstance(m, BatchTokenIDOutput) and m.opened)
    assert (first.opened[0].entry, [row.rid for row in first.rows]) == (1, ["r"])
    assert second.opened[0].entry == 2


def test_another_workers_requests_are_aborted_by_exact_rid_call_or_prefix() -> None:
    at, _ = desk()
    for rid, call, entry in [
        ("r1", "", 0),
        ("r10", "", 0),
        ("c-0", "c", 0),
        ("c-1", "c", 0),
        ("own", "", 3),
        ("x", "", 1),
        ("again", "", 0),
    ]:
        at.submit(rid, entry=entry, call=call)
    for asked, expected, notices in [
        (AbortOthersReq(1, 3, ["r"]), [], []),
        (AbortOthersReq(2, 3, [""]), [], []),
        (AbortOthersReq(3, 3, ["r1", "own"]), ["r1"], [(0, [1])]),
        (AbortOthersReq(4, 3, ["c"]), ["c-0", "c-1"], [(0, [3, 4])]),
        (AbortOthersReq(5, 3, prefix="r"), ["r10"], [(0, [2])]),
        (AbortOthersReq(6, 3, prefix=""), ["x", "again"], [(1, [6]), (0, [7])]),
    ]:
        at.to_entry.sent.clear()
        at.asked_entries.clear()
        at.scheduler.handle(asked)
        assert list(zip(at.asked_entries, at.to_entry.sent, strict=True)) == [
            *((entry, AbortNotice(slots, "aborted")) for entry, slots in notices),
            (3, AbortOthersReply(asked.id, expected)),
        ]
    at.run()
    assert not isinstance(at.finish("own"), Abort)


def test_a_step_that_gets_nobody_on_is_no_progress() -> None:
    at, executor = desk(chunked_prefill_size=10)
    assert not at.scheduler.got_on
    at.submit("r", list(range(300, 320)), max_new=2)
    executor.nothing_for = {"r"}
    progress = []
    for _ in range(5):
        at.step()
        progress.append(at.scheduler.got_on)
    assert progress == [True, False, False, False, False]  # a chunk of the prompt, the rest of it without a token, then nothing
    executor.nothing_for = set()
    at.step()
    assert at.scheduler.got_on
    at.run()
    at.step()
    assert not at.scheduler.got_on


def test_a_long_prompt_among_many_short_requests_gets_on_in_every_step_and_so_do_they() -> None:
    at, executor = desk(chunked_prefill_size=32, num_pages=256)
    for number in range(5):
        at.submit(f"s{number}", [40 + number] * 4, max_new=40, ignore_eos=True)
    at.step()
    at.submit("long", range(100, 500), max_new=3, ignore_eos=True)
    for number in range(5, 12):
        at.submit(f"s{number}", [40 + number] * 4, max_new=4, ignore_eos=True)
    while at.rows("long") == []:
        before = {rid: len(at.tokens(rid)) for rid in ("s0", "s1", "s2", "s3", "s4")}
        at.step()
        assert {rid: len(at.tokens(rid)) for rid in before} == {rid: count + 1 for rid, count in before.items()}
        assert executor.batches[-1][5][0] == "long"
        assert sum(end - start for _, start, end in executor.batches[-1]) <= 32
    assert len(executor.batches) - 1 == -(-400 // 27)
    at.run()
    assert all(at.finish(f"s{number}") is not None for number in range(12))
