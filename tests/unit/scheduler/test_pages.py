"""Pages as requests meet them: prefixes that are computed once, and a pool that is too small for all."""

from __future__ import annotations

from millstream.messages import Length
from tests.unit.scheduler.harness import assert_nothing_held, desk


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
    assert at.stats().retractions == sum(at.rows(f"r{number}")[-1].usage.retractions for number in range(3))
    assert at.stats().preemptions == 0
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
