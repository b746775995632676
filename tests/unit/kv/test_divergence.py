"""Why no more of a prompt was known: every reason, the place, and what stands there instead."""

from __future__ import annotations

import pytest

from millstream.kv.divergence import diverged
from millstream.kv.radix_cache import MAX_EVICTED, RadixCache
from millstream.messages.journey import Divergence

KNOWN = list(range(100, 116))  # four pages of four


def tree(*prompts: list[int], namespace: str = "") -> RadixCache:
    cache = RadixCache(4)
    for index, prompt in enumerate(prompts):
        cache.insert(namespace, prompt, range(100 * index, 100 * index + len(prompt) // 4))
    return cache


def ask(cache: RadixCache, prompt: list[int], *, namespace: str | None = "", num_skippable: int | None = None) -> Divergence:
    most = len(prompt) - 1 if num_skippable is None else num_skippable
    known = 0 if namespace is None else 4 * len(cache.match(namespace, prompt, most // 4).pages)
    return diverged(cache, namespace, prompt, num_known=known, num_skippable=most, num_shown=3)


def test_a_timestamp_in_the_middle_is_found_to_the_token() -> None:
    found = ask(tree(KNOWN), [*KNOWN[:9], 7, 8, 9, *KNOWN[12:]])
    assert found == Divergence("diverged", 9, before=KNOWN[6:9], after=[7, 8, 9], sibling=KNOWN[9:12])


def test_of_several_that_go_on_otherwise_the_nearest_is_told() -> None:
    far, near = [*KNOWN[:4], 1, 2, 3, 4], [*KNOWN[:6], 55, 56]
    found = ask(tree(far, near, [*KNOWN[:4], 9, 9, 9, 9]), KNOWN)
    assert (found.reason, found.at, found.sibling) == ("diverged", 6, [55, 56])


def test_another_beginning_diverges_at_once() -> None:
    assert ask(tree(KNOWN), [7] * 9) == Divergence("diverged", 0, before=[], after=[7, 7, 7], sibling=KNOWN[:3])


def test_a_prompt_that_goes_on_where_what_is_known_ends() -> None:
    assert ask(tree(KNOWN[:8]), KNOWN) == Divergence("extended", 8, before=KNOWN[5:8], after=KNOWN[8:11])


@pytest.mark.parametrize(
    ("prompt", "reason", "at"),
    [
        ([*KNOWN, 1], "whole", 16),
        (KNOWN, "page_boundary", 12),  # the last token is always computed, and with it its page
        ([*KNOWN, 1, 2], "page_boundary", 16),
        ([1, 2], "page_boundary", 0),
    ],
)
def test_less_than_a_page_is_never_known(prompt: list[int], reason: str, at: int) -> None:
    found = ask(tree(KNOWN), prompt)
    assert (found.reason, found.at) == (reason, at)


def test_nothing_is_known_yet() -> None:
    assert ask(tree(), KNOWN).reason == "nothing_cached"
    assert ask(tree([1] * 8, namespace="other"), KNOWN).reason == "nothing_cached"


def test_it_is_known_in_another_namespace_only() -> None:
    assert ask(tree(KNOWN, namespace="other"), KNOWN).reason == "namespace"


def test_it_was_known_and_made_room() -> None:
    cache = tree(KNOWN)
    cache.evict(2)
    assert ask(cache, [*KNOWN, 1]) == Divergence("evicted", 8, before=KNOWN[5:8], after=KNOWN[8:11])
    cache.evict(2)
    assert ask(cache, KNOWN).reason == "evicted"


def test_no_prefix_is_kept_at_all() -> None:
    assert ask(tree(KNOWN), KNOWN, namespace=None).reason == "cache_off"


def test_logits_of_the_prompt_are_asked_for() -> None:
    found = ask(tree(KNOWN), [*KNOWN, 1], num_skippable=5)
    assert (found.reason, found.at) == ("prompt_logprobs", 4)


def test_no_tokens_are_told_where_none_may_be() -> None:
    found = diverged(tree(KNOWN), "", [7] * 9, num_known=0, num_skippable=8, num_shown=0)
    assert found == Divergence("diverged", 0)


def test_asking_changes_nothing_and_what_is_remembered_is_bounded() -> None:
    cache = RadixCache(1)
    for number in range(MAX_EVICTED + 10):
        cache.insert("", [number], [number])
    before = (cache.version, sorted(cache.pages()))
    ask(cache, KNOWN)
    assert (cache.version, sorted(cache.pages())) == before
    cache.evict(MAX_EVICTED + 10)
    assert not cache.was_evicted("", [0], 0)
    assert cache.was_evicted("", [MAX_EVICTED + 9], 0)
    cache.audit()
