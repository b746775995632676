"""Backoff: when a process that died is started again, and when it has died too often. Pure: the caller brings the time.

One for each place a process fills; used by the crew. A first death is answered at once, later ones ever more slowly, until
the successor has been ready for so long that what killed the others is over.
"""

from __future__ import annotations

from collections import deque

FIRST_DELAY_S = 0.5  # before the second restart in a row; the first comes at once
MAX_DELAY_S = 30.0
SETTLED_S = 60.0  # ready for so long, a process has come through: its next death is a first one
WINDOW_S = 600.0  # restarts are counted for so long


class Backoff:
    """The deaths of one place. `max_restarts`: how many are answered within `WINDOW_S`. Times are seconds of one clock."""

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._deaths: deque[float] = deque()  # those that were answered, of the last `WINDOW_S`
        self._in_a_row = 0
        self._ready_since: float | None = None

    def ready(self, now: float) -> None:
        """The process is ready."""
        self._ready_since = now

    def died(self, now: float) -> float | None:
        """The process is dead: when to start the next one, or None where it has died too often."""
        if self._ready_since is not None and now - self._ready_since >= SETTLED_S:
            self._in_a_row = 0
        self._ready_since = None
        while self._deaths and now - self._deaths[0] >= WINDOW_S:
            self._deaths.popleft()
        if len(self._deaths) >= self._max_restarts:
            return None
        delay = 0.0 if self._in_a_row == 0 else min(FIRST_DELAY_S * 2.0 ** (self._in_a_row - 1), MAX_DELAY_S)
        self._deaths.append(now)
        self._in_a_row += 1
        return now + delay
