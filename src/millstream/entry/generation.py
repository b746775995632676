"""Generation: what one client call waits for, one or several requests (choices, prompts) behind one doorbell.

Made by the TokenizerManager, consumed by exactly one coroutine of an adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.state import Phase, ReqState
from millstream.messages import Progress, TextRow

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where requests came from, for messages and the log; nothing behind the TokenizerManager sees it.

    `default_max_new_tokens` applies where the client gave no limit, shortened to what the context leaves; None: all of it.
    """

    api: str
    model: str
    prompt_param: str  # what the client calls its prompt
    request_id: str | None = None  # the client's own id, only echoed and logged
    default_max_new_tokens: int | None = None


class Generation:
    """The requests of one call, in order. `rid` is the call's own key; with one request it is the request's too."""

    def __init__(self, rid: str, states: list[ReqState], origin: Origin) -> None:
        self.rid = rid
        self.states = states
        for index, state in enumerate(states):
            state.index = index
        self.origin = origin
        # takes a row as it comes, given the index of its request, and wakes nobody; False: it cannot now
        self.shortcut: Callable[[int, TextRow], bool] | None = None
        self._progress: Progress | None = None
        self._bell = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of work that is of no use once a request has ended

    def take_shortcut(self, state: ReqState, row: TextRow) -> bool:
        """Hand a row that ends nothing to whoever takes rows as they come; False: it has to wait for `receive`."""
        if self.shortcut is None or state.phase is not Phase.RECEIVING or state.has_rows:
            return False
        state.usage = row.usage
        if not self.shortcut(state.index, row):
            return False
        state.note_handed_on(row)
        return True

    async def unless_ended(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work`, and cancel it when one of the requests ends meanwhile.

        Raises:
            RequestFailed: one did.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._limit = limit
                return await work()
        except TimeoutError:
            if limit.expired():
                self._check_failures()
            raise
        finally:
            self._limit = None

    def ring(self) -> None:
        """Wake the consumer: rows, a verdict, a failure, or time for a sign of life."""
        self._bell.set()

    def note_progress(self, progress: Progress) -> None:
        """Keep the newest word on how far the call is before its first token."""
        self._progress = progress
        self.ring()

    def take_progress(self) -> Progress | None:
        """The newest word that was not taken yet."""
        progress, self._progress = self._progress, None
        return progress

    async def wait(self) -> None:
        """Wait for the next ring.

        Raises:
            RequestFailed: one of the requests ended without being finished.
        """
        await self._bell.wait()
        self._bell.clear()
        self._check_failures()

    def _check_failures(self) -> None:
        for state in self.states:
            if state.failure is not None:
                raise RequestFailed(state.failure)

    async def receive(self) -> list[tuple[int, TextRow]]:
        """Wait for rows, then take all there are: (index of the request, row). Empty after `ring` without rows.

        A row may end its request with `Abort`; what that means to the client is the adapter's to say.

        Raises:
            RequestFailed: one of the requests ended without a row.
        """
        await self.wait()
        return [(index, row) for index, state in enumerate(self.states) if (row := state.take()) is not None]

    def stamp_written(self, now: float, *, last: bool = False) -> None:
        """Note that a part of a stream was handed to the connection at `now`; `last`: that the answer is complete."""
        for state in self.states:
            timing = state.obj.timing
            if last:
                timing.written = now
            else:
                timing.first_written = timing.first_written or now

    def fail(self, state: ReqState, failure: Failure) -> None:
        """End `state` from the entry's side: no row of it will come."""
        state.failure = failure
        if state.phase is not Phase.FINISHED:
            state.move(Phase.FINISHED)
        if self._limit is not None:
            self._limit.reschedule(0.0)
        self.ring()

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(state.phase is Phase.FINISHED for state in self.states)
