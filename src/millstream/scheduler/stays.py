"""Stays: where a request has been in the scheduler and what it waited for there, noted when it moves, never a token.

`Queues` and the scheduler tell `StayBook`. What holds up the queue is noted once a step for all that wait: whoever leaves it
takes the difference along. At the end it is the request's `Journey`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from millstream.messages.journey import (
    LACKS,
    MAX_CHUNKS,
    MAX_WAITS,
    Chunk,
    Divergence,
    Journey,
    Lack,
    LiveRequest,
    Wait,
    WaitPlace,
)

if TYPE_CHECKING:
    from millstream.scheduler.state import Req

_encode = msgspec.msgpack.Encoder().encode
_LACK = {lack: index for index, lack in enumerate(LACKS)}


class Stays:
    """The way of one request so far. `place` is None while it runs."""

    __slots__ = ("ahead", "cache", "chunks", "place", "seen", "since", "waits", "why")

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.chunks: list[Chunk] = []
        self.cache: Divergence | None = None
        self.place: WaitPlace | None = None
        self.since = 0.0
        self.why = ""
        self.ahead = 0
        self.seen: tuple[float, ...] = ()  # what the queue had lacked by then


class StayBook:
    """The stays of all requests of one scheduler, and for how long the queue has been held up by what."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lacked = [0.0] * len(LACKS)
        self._lack: Lack | None = None
        self._lack_since = 0.0

    def waits(self, req: Req, place: WaitPlace, why: str, ahead: int = 0) -> None:
        """A request waits from now on; in the queue behind `ahead` others."""
        stays = req.stays
        stays.place, stays.why, stays.ahead, stays.since = place, why, ahead, self._clock()
        if place == "waiting":
            stays.seen = self._lacked_by(stays.since)

    def goes_on(self, req: Req) -> None:
        """It does not wait any more, there."""
        stays = req.stays
        if stays.place is not None:
            _append(stays.waits, self._wait(stays, self._clock()))
            stays.place = None

    def note_line(self, lack: Lack | None, now: float) -> None:
        """What the first of the queue has lacked since `now`; None: nobody waits, or nothing is in the way."""
        if lack != self._lack:
            if self._lack is not None:
                self._lacked[_LACK[self._lack]] += now - self._lack_since
            self._lack, self._lack_since = lack, now

    def note_chunk(self, req: Req, num_tokens: int, start: float, end: float) -> None:
        """A step computed so many tokens of its prompt, or of all it has after a retraction."""
        chunks = req.stays.chunks
        if len(chunks) == MAX_CHUNKS:
            last = chunks.pop()
            chunks.append(Chunk(last.start, end, last.num_tokens + num_tokens, last.steps + 1))
        else:
            chunks.append(Chunk(start, end, num_tokens))

    def journey(self, req: Req) -> bytes:
        """What a request went through up to now, as `Timing.journey` has it."""
        stays = req.stays
        waits = stays.waits
        if stays.place is not None:
            waits = list(waits)
            _append(waits, self._wait(stays, self._clock()))
        return _encode(Journey(waits, stays.chunks, stays.cache))

    def _wait(self, stays: Stays, now: float) -> Wait:
        assert stays.place is not None
        lacked: tuple[float, ...] = ()
        if stays.place == "waiting":
            lacked = tuple(after - before for after, before in zip(self._lacked_by(now), stays.seen, strict=True))
        return Wait(stays.place, stays.since, now, stays.why, now - stays.since, stays.ahead, lacked)

    def _lacked_by(self, now: float) -> tuple[float, ...]:
        lacked = tuple(self._lacked)
        if self._lack is None:
            return lacked
        index = _LACK[self._lack]
        return (*lacked[:index], lacked[index] + now - self._lack_since, *lacked[index + 1 :])


def _append(waits: list[Wait], wait: Wait) -> None:
    """List a wait; where there are too many, put it together with the last one of its kind."""
    if len(waits) < MAX_WAITS:
        waits.append(wait)
        return
    index = next((index for index in range(len(waits) - 1, -1, -1) if waits[index].place == wait.place), -1)
    last = waits[index]
    lacked = tuple(before + more for before, more in zip(last.lacked, wait.lacked, strict=False))
    waits[index] = last._replace(end=wait.end, seconds=last.seconds + wait.seconds, lacked=lacked, times=last.times + 1)


def live_request(req: Req, book: StayBook) -> LiveRequest:
    """How far a request is, for whoever asks."""
    state: Literal["queued", "running", "paused"] = "running"
    if req.stays.place is not None:
        state = "paused" if req.stays.place == "paused" else "queued"
    return LiveRequest(req.rid, state, msgspec.structs.replace(req.timing, journey=book.journey(req)), req.usage)
