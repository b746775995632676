"""Pauses: calls of which nothing more is made for now, because their clients do not read. Used by the TokenizerManager.

Rows that wait are counted in bytes; beyond the bound the scheduler is told to pause, once a call. The call's stream ends the
pause when its client has read on. What is on the way when it begins still comes.
"""

from __future__ import annotations

from functools import partial

from millstream.entry.generation import Generation
from millstream.entry.state import ReqState
from millstream.ipc.channel import Sender
from millstream.messages import PauseReq, ResumeReq, TextRow


class Pauses:
    """The bound on what may wait for the client of a stream."""

    def __init__(self, *, to_scheduler: Sender, max_unsent_bytes: int) -> None:
        self._to_scheduler = to_scheduler
        self._max_unsent_bytes = max_unsent_bytes

    def note_waiting(self, state: ReqState, generation: Generation, row: TextRow) -> None:
        """Count a row that has to wait; where too much waits, pause."""
        if not state.released and generation.add_unread(row) > self._max_unsent_bytes and generation.resume is None:
            generation.resume = partial(self._resume, generation)
            for each in generation.states:
                if each.dispatched:
                    self._to_scheduler.send(PauseReq(each.rid))

    def _resume(self, generation: Generation) -> None:
        generation.resume = None
        for state in generation.states:
            if state.dispatched:
                self._to_scheduler.send(ResumeReq(state.rid))
