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

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def append(self, req: Req) -> None:
        """Add a newcomer."""
        self._reqs.append(req)
        self.num_tokens += len(req.token_ids)

    def appendleft(self, req: Req) -> None:
        """Put back one that was thrown out of the running ones: it came before everybody here."""
        self._reqs.appendleft(req)
        self.num_tokens += len(req.token_ids)

    def popleft(self) -> Req:
        """Take the first."""
        req = self._reqs.popleft()
        self.num_tokens -= len(req.token_ids)
        return req

    def remove(self, req: Req) -> None:
        """Take one out that has ended."""
        self._reqs.remove(req)
        self.num_tokens -= len(req.token_ids)

    def num_tokens_behind(self, count: int) -> int:
        """The tokens of all but the first `count`."""
        return self.num_tokens - sum(len(req.token_ids) for req in islice(self._reqs, count))
