"""WaitingQueue: the requests that wait for a slot and pages, by rank and by arrival, with the tokens they wait to compute."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from millstream.scheduler.state import Req

_rank, _arrival = attrgetter("rank"), attrgetter("arrival")


class WaitingQueue:
    """A queue that knows its weight. A request's tokens do not change while it waits; iteration is by rank."""

    def __init__(self) -> None:
        self._by_rank: list[Req] = []
        self._by_arrival: list[Req] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._by_rank)

    @property
    def urgent(self) -> Req | None:
        """The first of the highest priority, those aside that are promoted: nobody makes room for them."""
        return next((req for req in self._by_rank if not req.is_promoted), None)

    @property
    def by_arrival(self) -> Sequence[Req]:
        """All of them, the oldest first."""
        return self._by_arrival

    def add(self, req: Req) -> None:
        """Take in a newcomer, or one that ran or was paused, at its places."""
        insort(self._by_rank, req, key=_rank)
        insort(self._by_arrival, req, key=_arrival)
        self.num_tokens += len(req.token_ids)

    def remove(self, req: Req) -> None:
        """Take one out; its rank may have changed."""
        self._by_rank.remove(req)
        self._by_arrival.remove(req)
        self.num_tokens -= len(req.token_ids)

    def num_before(self, req: Req) -> int:
        """How many are before the place of a request that is not here yet."""
        return bisect_left(self._by_rank, req.rank, key=_rank)

    def num_ahead_of(self, priority: int) -> int:
        """How many a newcomer of this priority would wait behind."""
        return bisect_right(self._by_rank, (1, -priority, math.inf), key=_rank)

    def num_tokens_between(self, start: int, end: int) -> int:
        """The tokens of those at the places from `start` to before `end`."""
        if end < len(self._by_rank):
            return sum(len(req.token_ids) for req in islice(self._by_rank, start, end))
        return self.num_tokens - sum(len(req.token_ids) for req in islice(self._by_rank, start))
