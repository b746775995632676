"""ProgressWatch: how far requests are that have no token yet, for clients that asked to be told. Owned by the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable

from millstream.messages import Progress
from millstream.scheduler.state import Req

INTERVAL_S = 0.25  # between two looks: a person reads them, and the queue is walked for each


class ProgressWatch:
    """The watched requests, and what was said of each last."""

    def __init__(self) -> None:
        self._said: dict[str, Progress | None] = {}
        self._last_look = -math.inf

    def __len__(self) -> int:
        return len(self._said)

    def add(self, rid: str) -> None:
        """Watch a request up to its first token or its end."""
        self._said[rid] = None

    def discard(self, rid: str) -> None:
        """Stop watching a request; one that is not watched is not known."""
        self._said.pop(rid, None)

    def report(self, waiting: Iterable[Req], running: Iterable[Req], now: float) -> dict[int, list[Progress]]:
        """What is new since the last look, by entry worker; nothing where that was a moment ago."""
        if now - self._last_look < INTERVAL_S:
            return {}
        self._last_look = now
        news: dict[int, list[Progress]] = {}
        for place, req in enumerate(waiting, 1):
            if req.rid in self._said:
                self._note(req, Progress(req.rid, place=place), news)
        for req in running:
            if req.rid in self._said:
                self._note(req, Progress(req.rid, done=req.num_computed, total=len(req.token_ids)), news)
        return news

    def _note(self, req: Req, progress: Progress, news: dict[int, list[Progress]]) -> None:
        if self._said[req.rid] != progress:
            self._said[req.rid] = progress
            news.setdefault(req.entry, []).append(progress)
