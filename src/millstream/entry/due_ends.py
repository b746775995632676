"""DueEnds: how long the entry waits for an end that must come. Owned by the TokenizerManager, which makes those that do not.

A final row passes through scheduler and detokenizer, and either may stand still until the supervisor notices. A client whose
deadline is over, or whose abort was taken, is not kept waiting for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.messages.finish import AbortCause

END_GRACE_S = 1.0  # what an end gets to come by itself: longer than a step of a busy server


class DueEnds:
    """The ends that are due, by the requests' slots. `make_end` is called, once, for one that has not come in time."""

    def __init__(self, make_end: Callable[[int, AbortCause], None], *, grace_s: float = END_GRACE_S) -> None:
        self._make_end = make_end
        self._grace_s = grace_s
        self._timers: dict[int, tuple[float, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def expect(self, slot: int, cause: AbortCause, in_s: float = 0.0) -> None:
        """The request must end for `cause` in `in_s` seconds. Of several such times the earliest counts."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, in_s) + self._grace_s
        if slot in self._timers:
            if self._timers[slot][0] <= when:
                return
            self.forget(slot)
        self._timers[slot] = when, loop.call_at(when, self._is_late, slot, cause)

    def forget(self, slot: int) -> None:
        """It has ended, or nobody waits for its end."""
        if (timer := self._timers.pop(slot, None)) is not None:
            timer[1].cancel()

    def _is_late(self, slot: int, cause: AbortCause) -> None:
        del self._timers[slot]
        self._make_end(slot, cause)
