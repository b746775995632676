"""Watch: whether a process that is ready lives and gets on, from its heartbeats. Pure: the caller brings the time.

A stopped process sends nothing, one that is caught in a step counts nothing. The first shows within seconds; the second is
given far longer, for a step may be a long prefill on a slow machine.
"""

from __future__ import annotations

from millstream.messages import Heartbeat


class Watch:
    """One process since it was ready at `now`. Times are seconds of one clock."""

    def __init__(self, now: float, *, wedge_timeout_s: float, step_timeout_s: float) -> None:
        self._wedge_timeout_s = wedge_timeout_s
        self._step_timeout_s = step_timeout_s
        self._heard_at = now
        self._got_on_at = now  # or had nothing to do
        self._progress: int | None = None

    def note(self, beat: Heartbeat, now: float) -> None:
        """A heartbeat came."""
        self._heard_at = now
        if beat.progress != self._progress or not beat.is_busy:
            self._progress = beat.progress
            self._got_on_at = now

    def forgive(self, pause_s: float, now: float) -> None:
        """Nobody listened for `pause_s`: what was not heard in that time does not count."""
        self._heard_at = min(now, self._heard_at + pause_s)
        self._got_on_at = min(now, self._got_on_at + pause_s)

    def verdict(self, now: float) -> str | None:
        """What is wrong with it; None where nothing is."""
        if now - self._heard_at >= self._wedge_timeout_s:
            return f"no sign of life for {self._wedge_timeout_s:g} s"
        if now - self._got_on_at >= self._step_timeout_s:
            return f"it has work and got nothing done for {self._step_timeout_s:g} s"
        return None
