"""WaitingQueue: the requests that wait for a slot and pages, in order of arrival, with the tokens they wait to compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from millstream.scheduler.state import Req


class WaitingQueue:
    """A queue that knows its weight. A request's tokens do not change while it waits."""

    def __init__(self) -> None:
        self._reqs: deque[Req] = deque()
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._reqs)

    @property
    def first(self) -> Req | None:
        """The one that came first."""
        return self._reqs[0] if self._reqs else None

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def append(self, req: Req) -> None:
        """Add a newcomer."""
        self._reqs.append(req)
        self.num_tokens += len(req.token_ids)

    def insert(self, req: Req) -> None:
        """Put back one that ran or was paused, at its place by arrival."""
        place = next((i for i, other in enumerate(self._reqs) if other.arrival > req.arrival), len(self._reqs))
        self._reqs.insert(place, req)
        self.num_tokens += len(req.token_ids)

    def remove(self, req: Req) -> None:
        """Take one out that has ended."""
        self._reqs.remove(req)
        self.num_tokens -= len(req.token_ids)

    def num_tokens_behind(self, count: int) -> int:
        """The tokens of all but the first `count`."""
        return self.num_tokens - sum(len(req.token_ids) for req in islice(self._reqs, count))
