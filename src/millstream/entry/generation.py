"""Generation: what one client call waits for, one or several requests (choices, prompts) behind one doorbell.

Made by the TokenizerManager, consumed by exactly one coroutine of an adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.entry.caller import Caller
from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.kept_text import KeptText
from millstream.entry.state import Phase, ReqState
from millstream.messages import Progress, TextRow
from millstream.messages.finish import AbortCause
from millstream.observe.ledger import Account

BYTES_PER_ID = 8  # of a token id that waits: its place in a list
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where requests came from, for messages and the log; nothing behind the TokenizerManager sees it.

    `default_max_new_tokens` applies where the client gave no limit, shortened to what the context leaves; None: all of it.
    `choices_per_item` is given where the client's prompt is a list: so many requests are of each item.
    """

    api: str
    model: str
    prompt_param: str  # what the client calls its prompt
    choices_per_item: int | None = None
    caller: Caller | None = None  # None: no HTTP request
    default_max_new_tokens: int | None = None
    is_probe: bool = False  # nobody's request: the server asks itself

    @property
    def request_id(self) -> str | None:
        """Of the HTTP request, only answered and logged."""
        return None if self.caller is None else self.caller.request_id

    def prompt_name(self, index: int) -> str:
        """What the client calls the prompt of request number `index`."""
        n = self.choices_per_item
        return self.prompt_param if n is None else f"{self.prompt_param}[{index // n}]"


class Generation:
    """The requests of one call, in order. `rid` is the call's own key; with one request it is the request's too."""

    def __init__(self, rid: str, states: list[ReqState], origin: Origin, account: Account) -> None:
        self.rid = rid
        self.account = account
        self.released = False  # nobody waits for it any more
        self.is_broken = False  # its answer failed by a fault of ours, and its client has been told
        self.states = states
        for index, state in enumerate(states):
            state.index = index
        self.origin = origin
        self.unread_bytes = 0  # of rows that wait for `receive`
        # bytes that were received and wait for the client; None: nobody needs to read what this call makes
        self.unsent: Callable[[], int] | None = None
        # set while the scheduler makes nothing more of this call: to be called once its client has read on
        self.resume: Callable[[], None] | None = None
        self.cut_off: AbortCause | None = None  # why its client was dropped, where that was our decision
        # told of each row that is received; with any of them, no row goes past `receive`
        self.taps: list[Callable[[int, TextRow], None]] = []
        self.kept_text: KeptText | None = None  # for the log
        self._progress: Progress | None = None
        self._bell = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of work that is of no use once a request has ended

    def add_unread(self, row: TextRow) -> int:
        """Count a row that waits for `receive`; returns the bytes that wait in all, 0 where they need not be bounded."""
        if self.unsent is None:
            return 0
        self.unread_bytes += len(row.text.encode()) + BYTES_PER_ID * len(row.token_ids)
        if row.details is not None:
            self.unread_bytes += BYTES_PER_ID * row.details.num_values
        return self.unread_bytes + self.unsent()

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
                self.check_failures()
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
        self.check_failures()

    def check_failures(self) -> None:
        """Return if none of the requests has ended without being finished.

        Raises:
            RequestFailed: one has.
        """
        for state in self.states:
            if state.failure is not None:
                raise RequestFailed(state.failure)

    async def receive(self) -> Iterator[tuple[int, TextRow]]:
        """Wait for rows, then give all there are: (index of the request, row). None after `ring` without rows.

        Each is taken when it is given, so that what was handed on by then can be told. Take all of them without waiting.

        A row may end its request with `Abort`; what that means to the client is the adapter's to say.

        Raises:
            RequestFailed: one of the requests ended without a row.
        """
        await self.wait()
        self.unread_bytes = 0
        rows = ((index, row) for index, state in enumerate(self.states) if (row := state.take()) is not None)
        return self._tapped(rows) if self.taps else rows

    def _tapped(self, rows: Iterator[tuple[int, TextRow]]) -> Iterator[tuple[int, TextRow]]:
        for index, row in rows:
            for tap in self.taps:
                tap(index, row)
            yield index, row

    def keep_text(self) -> None:
        """Keep the beginning of what it says."""
        self.kept_text = KeptText(len(self.states))
        self.taps.append(self.kept_text.take)

    def stamp_written(self, now: float, *, last: bool = False) -> None:
        """Note that a part of a stream was handed to the connection at `now`; `last`: that the answer is complete."""
        for state in self.states:
            timing = state.obj.timing
            if last:
                timing.written = now
            else:
                timing.first_written = timing.first_written or now

    def fail(self, state: ReqState, failure: Failure) -> None:
        """Tell the client that `state` has failed. Its rid stays taken until its final row comes: others are on their way."""
        state.failure = failure
        state.drop_rows()
        self.interrupt()

    def interrupt(self) -> None:
        """Wake the consumer, and stop work of `unless_ended`: a request has failed or ended early."""
        if self._limit is not None:
            self._limit.reschedule(0.0)
        self.ring()

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(state.phase is Phase.FINISHED for state in self.states)
