"""Divergence: why no more of a prompt was known, found at its admission from where its walk through the prefix tree ended.

Asked by the pool, once a request. Token ids only, and bounded: a tree of any size is looked at in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.kv.radix_cache import RadixCache
from millstream.messages.journey import CacheReason, Divergence


def diverged(
    cache: RadixCache, namespace: str | None, token_ids: Sequence[int], *, num_known: int, num_skippable: int, num_shown: int
) -> Divergence:
    """Why of `token_ids` `num_known` are known, and no more. Changes nothing.

    Args:
        num_skippable: how many need not be computed at most: all but the last, or all before the first whose logits are needed.
        num_shown: tokens that are told on both sides of the place, and of what stands there instead.
    """
    size = cache.page_size
    sibling: Sequence[int] = ()
    at = num_known
    reason: CacheReason
    if namespace is None:
        reason = "cache_off"
    elif num_known + size > num_skippable:
        if num_skippable < len(token_ids) - 1:
            reason = "prompt_logprobs"
        else:
            reason = "whole" if num_known >= num_skippable else "page_boundary"
    else:
        match = cache.match(namespace, token_ids, num_skippable // size)
        start = len(match.pages) * size
        rest = token_ids[start : start + size]
        sibling, common = _nearest(cache.beyond(match, namespace, size + num_shown), rest)
        at = start + common
        if cache.was_evicted(namespace, token_ids, start // size):
            reason = "evicted"
        elif start == common == 0 and cache.has_elsewhere(namespace, token_ids):
            reason = "namespace"
        elif sibling:
            reason = "diverged"
        else:
            reason = "extended" if start else "nothing_cached"
        sibling = sibling[common : common + num_shown]
    return Divergence(
        reason, at, list(token_ids[max(0, at - num_shown) : at]), list(token_ids[at : at + num_shown]), list(sibling)
    )


def _nearest(siblings: Sequence[Sequence[int]], rest: Sequence[int]) -> tuple[Sequence[int], int]:
    """Of what is known there, the tokens that agree longest with `rest`, and how many do; of equals the first."""
    best: Sequence[int] = ()
    most = -1
    for tokens in siblings:
        if most >= 0 and tokens[0] != rest[0]:
            continue
        common = next((index for index, token in enumerate(rest) if token != tokens[index]), len(rest))
        if common > most:
            best, most = tokens, common
    return best, max(most, 0)
