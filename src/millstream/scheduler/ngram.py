"""NgramIndex: what followed the last time that a sequence said what it says now. One a request, owned by `speculation`.

Prompt lookup (Saxena, "Prompt Lookup Decoding", 2023): answers that quote, edit or repeat say again what stands in prompt or
output already. The index is that of LZ77 compressors (hash chains, as in Deflate): a table leads from the hash of a few tokens
to the place where they stood last, and each place links to the one before it. It reads the sequence and never changes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

BUCKETS = 1 << 16  # 256 KiB a request; with the links, 4 bytes for each token of the sequence, that is all the memory there is
MAX_LOOKS = 64  # places that a search looks at, the latest first
MAX_INDEXED = 512  # tokens that one call takes into the index: a long prompt must not hold up a step (0.15 ms)


class NgramIndex:
    """Finds the longest end of `token_ids`, of `shortest` to `longest` tokens, that stood in it before.

    Of several places it takes the latest. `token_ids` is the request's own list: it may grow, but what is in it stays.
    """

    def __init__(self, token_ids: Sequence[int], *, shortest: int, longest: int) -> None:
        self._ids = token_ids
        self._shortest = shortest
        self._longest = longest
        self._heads = array("i", [-1]) * BUCKETS  # by hash: the latest place where so many tokens begin; -1: none
        self._links = array("i")  # by place: the place before it with the same hash

    def propose(self, count: int) -> list[int]:
        """Guess the next `count` tokens; no token where the end of the sequence is new. O(1) amortised, for each token added.

        Where the source runs into the end of the sequence, it goes on in the same circle.
        """
        self._extend()
        source = self._find()
        if source is None:
            return []
        draft = list(self._ids[source : source + count])
        period = len(self._ids) - source
        while len(draft) < count:
            draft.append(draft[-period])
        return draft

    def _extend(self) -> None:
        """Take places into the index that have a token behind them."""
        ids, size, heads, links = self._ids, self._shortest, self._heads, self._links
        known = len(links)
        for place in range(known, min(len(ids) - size, known + MAX_INDEXED)):
            bucket = hash(tuple(ids[place : place + size])) % BUCKETS
            links.append(heads[bucket])
            heads[bucket] = place

    def _find(self) -> int | None:
        """The place behind the longest match."""
        ids, size, links = self._ids, self._shortest, self._links
        last = len(ids) - size
        if last < 1:
            return None
        end = ids[last:]
        place = self._heads[hash(tuple(end)) % BUCKETS]
        best, best_length = None, 0
        for _ in range(MAX_LOOKS):
            if place < 0 or best_length == self._longest:
                break
            if ids[place : place + size] == end:
                length = size + self._num_common_before(place, last)
                if length > best_length:
                    best, best_length = place + size, length
            place = links[place]
        return best

    def _num_common_before(self, left: int, right: int) -> int:
        """How many tokens before the two places are the same; as many at most as the longest match needs."""
        ids = self._ids
        count, most = 0, min(self._longest - self._shortest, left)
        while count < most and ids[left - count - 1] == ids[right - count - 1]:
            count += 1
        return count
