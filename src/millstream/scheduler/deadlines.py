"""Deadlines: which live requests must have ended by when. Owned by the scheduler, asked once a step."""

from __future__ import annotations

import math


class Deadlines:
    """The deadlines of live requests, in seconds of the scheduler's clock.

    `_next` is the earliest or, once that one was discarded, some time before it: the question of each step is one comparison,
    and all of them are looked at only when it says yes.
    """

    def __init__(self) -> None:
        self._by_rid: dict[str, float] = {}
        self._next = math.inf

    def __len__(self) -> int:
        return len(self._by_rid)

    def add(self, rid: str, deadline: float) -> None:
        """Watch a request."""
        self._by_rid[rid] = deadline
        self._next = min(self._next, deadline)

    def discard(self, rid: str) -> None:
        """Forget a request that has ended; one without a deadline is not known."""
        if self._by_rid.pop(rid, None) is not None and not self._by_rid:
            self._next = math.inf

    def overdue(self, now: float) -> list[tuple[str, float]]:
        """The requests whose time is up, with their deadlines, in order of arrival. They stay until they are discarded."""
        if now < self._next:
            return []
        self._next = min(self._by_rid.values(), default=math.inf)
        return [(rid, deadline) for rid, deadline in self._by_rid.items() if deadline <= now]

    def wait_s(self, now: float) -> float | None:
        """Seconds until the next may be due; None where there is none."""
        return max(0.0, self._next - now) if self._by_rid else None
