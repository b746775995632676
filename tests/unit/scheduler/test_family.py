"""Choices of one prompt: computed once, forked from whoever has it, the same tokens as requests of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.messages import Abort, Length
from tests.unit.scheduler.harness import Desk, desk

PROMPT = list(range(10, 20))  # two pages and a half


def submit(at: Desk, n: int, prompt: Sequence[int] = PROMPT, *, call: str = "c", max_new: int = 6) -> list[str]:
    rids = [f"{call}-{choice}" for choice in range(n)]
    for choice, rid in enumerate(rids):
        at.submit(rid, prompt, max_new=max_new, call=call, seed=1 + choice, ignore_eos=True)
    return rids


def undisturbed(n: int, prompt: Sequence[int] = PROMPT, *, max_new: int = 6) -> list[list[int]]:
    """The tokens of as many requests of their own, one after the other."""
    made = []
    for choice in range(n):
        at, _ = desk(share_prefixes=False)
        at.submit("r", prompt, max_new=max_new, seed=1 + choice, ignore_eos=True)
        at.run()
        made.append(at.tokens("r"))
    return made


def cached(at: Desk, rid: str) -> int:
    return at.rows(rid)[-1].usage.cached_tokens


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_a_prompt_is_computed_once_and_the_other_choices_begin_at_its_last_token(share_prefixes: bool) -> None:
    at, executor = desk(share_prefixes=share_prefixes)
    rids = submit(at, 4)
    at.run()
    assert executor.batches[0] == [("c-0", 0, 10)]
    assert executor.batches[1] == [("c-0", 10, 11), *((rid, 9, 10) for rid in rids[1:])]
    assert executor.num_copies == 3
    assert [cached(at, rid) for rid in rids] == [0, 9, 9, 9]
    assert [at.tokens(rid) for rid in rids] == undisturbed(4)
    stats = at.stats()
    assert (stats.pages_free, stats.pages_cached > 0) == (64, share_prefixes)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 9, 12, 13])
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_every_place_of_the_prompt_s_end_in_a_page_comes_to_the_same_tokens(length: int, share_prefixes: bool) -> None:
    prompt = list(range(40, 40 + length))
    at, executor = desk(share_prefixes=share_prefixes, chunked_prefill_size=9)
    rids = submit(at, 3, prompt)
    at.run()
    assert [at.tokens(rid) for rid in rids] == undisturbed(3, prompt)
    assert [cached(at, rid) for rid in rids] == [0, length - 1, length - 1]
    assert executor.num_copies == (0 if length % 4 == 1 else 2)  # the last token alone is in its page


def test_the_full_pages_of_a_prompt_are_held_once_whatever_n_is() -> None:
    at, _ = desk(page_size=4, num_pages=64)
    submit(at, 8, list(range(100, 142)))
    at.step()
    at.step()
    assert at.pool.num_pages - at.pool.available == 10 + 8  # 40 tokens together, and a page each


def test_a_call_with_two_prompts_forks_each_from_its_own() -> None:
    at, executor = desk()
    other = [*PROMPT[:-1], 77]
    for number, prompt in enumerate((PROMPT, PROMPT, other, other)):
        at.submit(f"c-{number}", prompt, max_new=3, call="c", seed=1 + number % 2, ignore_eos=True)
    at.run()
    assert [at.tokens(f"c-{number}") for number in range(4)] == undisturbed(2, max_new=3) + undisturbed(2, other, max_new=3)
    assert executor.num_copies == 2


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("how", ["abort", "pause"])
def test_when_the_first_goes_in_the_middle_of_the_prompt_another_computes_the_rest(share_prefixes: bool, how: str) -> None:
    at, executor = desk(share_prefixes=share_prefixes, chunked_prefill_size=9)
    prompt = list(range(50, 80))
    rids = submit(at, 3, prompt)
    at.step()
    at.step()
    assert executor.batches[-1] == [("c-0", 9, 18)]
    at.abort("c-0") if how == "abort" else at.pause("c-0")
    at.step()
    assert executor.batches[-1][0] == ("c-1", 16 if how == "abort" else 0, 25 if how == "abort" else 9)
    at.run()
    assert [at.tokens(rid) for rid in rids[1:]] == undisturbed(3, prompt)[1:]
    assert cached(at, "c-2") == 29
    if how == "pause":
        at.resume("c-0")
        at.run()
        assert at.tokens("c-0") == undisturbed(1, prompt)[0]


def test_a_choice_that_ended_with_its_first_token_leaves_the_full_pages() -> None:
    at, _ = desk()
    rids = submit(at, 3, max_new=1)
    at.run()
    assert [at.tokens(rid) for rid in rids] == undisturbed(3, max_new=1)
    assert [cached(at, rid) for rid in rids] == [0, 8, 8]


def test_a_paused_choice_with_its_pages_is_forked_from() -> None:
    at, _ = desk(max_running_requests=1)
    submit(at, 2)
    at.step()
    at.pause("c-0")
    at.run()
    assert (at.tokens("c-1"), cached(at, "c-1")) == (undisturbed(2)[1], 9)


def test_where_the_first_failed_nothing_of_it_is_taken_over() -> None:
    at, executor = desk()
    submit(at, 3)
    executor.fail_rids = {"c-0"}
    at.run()
    assert isinstance(at.finish("c-0"), Abort)
    assert [cached(at, rid) for rid in ("c-1", "c-2")] == [0, 9]
    assert [at.tokens(rid) for rid in ("c-1", "c-2")] == undisturbed(3)[1:]


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_choices_that_lose_their_pages_fork_again(share_prefixes: bool) -> None:
    at, executor = desk(num_pages=14, share_prefixes=share_prefixes)
    rids = submit(at, 5, max_new=14)
    at.run()
    assert at.stats().retractions > 0
    assert [at.tokens(rid) for rid in rids] == undisturbed(5, max_new=14)
    assert all(at.finish(rid) == Length(14) for rid in rids)
    assert executor.num_copies >= 4


def test_a_fork_of_which_nothing_came_is_not_copied_again() -> None:
    at, executor = desk()
    executor.nothing_for = {"c-1"}
    submit(at, 2)
    for _ in range(4):
        at.step()
    assert executor.num_copies == 1
    executor.nothing_for = set()
    at.run()
    assert [at.tokens(rid) for rid in ("c-0", "c-1")] == undisturbed(2)


def test_a_step_with_forks_that_fails_as_a_whole_is_run_again_row_by_row(caplog: pytest.LogCaptureFixture) -> None:
    at, executor = desk()
    rids = submit(at, 3)
    at.step()
    executor.fail_with = RuntimeError("once")
    at.run()
    assert [at.tokens(rid) for rid in rids] == undisturbed(3)


def test_calls_of_the_same_name_from_two_workers_are_two_families() -> None:
    at, _ = desk(share_prefixes=False)
    for entry in (0, 1):
        at.submit(f"e{entry}", PROMPT, max_new=3, call="c", entry=entry, ignore_eos=True)
    at.run()
    assert [cached(at, rid) for rid in ("e0", "e1")] == [0, 0]
