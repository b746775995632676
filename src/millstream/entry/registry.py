"""Registry: which requests and calls of this entry worker are live, and under which names. Owned by the TokenizerManager.

A rid is taken from registration to the request's end; a call's own rid until all of its requests have ended. Rows know a
request by its slot, a number that is given once, for its rid may be in use again when they come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from millstream.entry.generation import Generation, Origin
from millstream.entry.state import ReqState
from millstream.errors import DuplicateRid, OverloadError
from millstream.messages import GenerateReqInput
from millstream.messages.columns import SLOTS
from millstream.messages.finish import EndCause
from millstream.observe.ledger import Ledger, ReleaseCause

Live = tuple[ReqState, Generation]


class Registry:
    """The live requests, by rid and by slot, and their calls. At most `max_live` requests."""

    def __init__(self, *, ledger: Ledger, max_live: int, retry_after_s: Callable[[], int]) -> None:
        self.by_rid: dict[str, Live] = {}
        self.by_slot: dict[int, Live] = {}  # the same
        self.calls: dict[str, Generation] = {}  # by the call's own rid, which may have none of its own
        self._ledger = ledger
        self._max_live = max_live
        self._retry_after_s = retry_after_s
        self._num_requests = 0
        self._num_readers = 0  # calls whose answer is not complete, whether or not their requests have ended
        self._idle = asyncio.Event()  # set whenever the last request has ended and its answer is complete
        ledger.watch("state", lambda: len(self.by_rid))
        ledger.watch("input_embeds", lambda: sum(state.num_embeds_bytes for state, _ in self.by_rid.values()))
        ledger.watch("generation", lambda: len(self.calls))
        ledger.watch("reader", lambda: self._num_readers)

    def __len__(self) -> int:
        return len(self.by_rid)

    def __iter__(self) -> Iterator[Live]:
        """The live requests now, in order of registration; they may end meanwhile."""
        return iter(list(self.by_rid.values()))

    def check(self, rid: str, requests: Sequence[GenerateReqInput]) -> None:
        """See whether a call and its requests can be registered.

        Raises:
            DuplicateRid: one of their rids is taken.
            OverloadError: too many are live.
        """
        for key in {rid, *(request.rid for request in requests)}:
            if key in self.by_rid or key in self.calls:
                raise DuplicateRid(key)
        if len(self) + len(requests) > self._max_live:
            message = f"{len(self)} requests are live, and at most {self._max_live} may be. Try again later."
            raise OverloadError(message, retry_after_s=self._retry_after_s())

    def register(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        """Take the rids of a call and its requests, which `check` has passed. Somebody reads its answer from now on, until
        `reader_left`.
        """
        states = [ReqState(request, self._ledger.open(request.rid), self._next_slot()) for request in requests]
        generation = Generation(rid, states, origin, self._ledger.open(rid))
        self.calls[rid] = generation
        generation.account.acquire("generation")
        generation.account.acquire("reader")
        self._num_readers += 1
        for state in states:
            self.by_rid[state.rid] = self.by_slot[state.slot] = (state, generation)
            state.account.acquire("state")
            if state.num_embeds_bytes:
                state.account.acquire("input_embeds", state.num_embeds_bytes)
        return generation

    def named(self, rid: str) -> list[Live]:
        """The live request with exactly this rid, or the live requests of the call with it."""
        generation = self.calls.get(rid)
        if generation is not None:
            return [(state, generation) for state in generation.states if state.slot in self.by_slot]
        return [self.by_rid[rid]] if rid in self.by_rid else []

    def beginning_with(self, prefix: str) -> list[Live]:
        """The live requests whose rid begins with `prefix`, as those of a call begin with the call's."""
        return [live for rid, live in self.by_rid.items() if rid.startswith(prefix)]

    def remove(self, state: ReqState, generation: Generation) -> None:
        """Let go of a request that has ended."""
        cause: EndCause = state.cause
        del self.by_rid[state.rid], self.by_slot[state.slot]
        state.account.release("state", cause)
        state.drop_embeds(cause)
        if generation.finished:
            del self.calls[generation.rid]
            generation.account.release("generation", cause)
            if generation.released:
                generation.account.settle("done")
        self._note_idle()

    def reader_left(self, generation: Generation, cause: ReleaseCause) -> None:
        """Nobody reads the answer to a call any more: it is complete, or was given up."""
        generation.released = True
        self._num_readers -= 1
        generation.account.release("reader", cause)
        if generation.finished:
            generation.account.settle("done")
        self._note_idle()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is live and every answer complete, for at most `timeout_s` seconds; returns whether it is."""
        if not self._is_idle and timeout_s > 0:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
        return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self.by_rid and not self._num_readers

    def _note_idle(self) -> None:
        if self._is_idle:
            self._idle.set()

    def _next_slot(self) -> int:
        slot = self._num_requests % SLOTS
        self._num_requests += 1
        return slot
