"""Why a request ended: decided once by its owner, read by everybody.

One word for each end, `EndCause`, the same in the error code of the answer, the line in the log, the ledger and wherever ends
are counted. `end_cause` is the only way from an end to its word.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

AbortCause = Literal["client_gone", "aborted", "deadline", "engine_error", "drain", "slow_reader"]
EndCause = Literal["stop", "length", "rejected"] | AbortCause  # rejected: it was never admitted


class Stop(Struct, frozen=True, tag="stop", gc=False):
    """The model finished: `matched` is the stop token id, the stop string, or None where nothing in particular matched."""

    matched: int | str | None = None


class Length(Struct, frozen=True, tag="length", gc=False):
    """`limit` new tokens were made, the most this request may have. 0: only its prompt was to be computed."""

    limit: int


class Abort(Struct, frozen=True, tag="abort", gc=False):
    """Ended from outside or by a fault. `status` is the HTTP status where nothing was sent yet."""

    cause: AbortCause
    message: str
    status: int = 500


FinishReason = Stop | Length | Abort


class Ended(Protocol):
    """An end that says its own word, such as the entry's `Failure`."""

    @property
    def cause(self) -> EndCause:
        """The word."""
        ...


def end_cause(end: FinishReason | Ended) -> EndCause:
    """The one word for how a request ended."""
    if isinstance(end, Stop):
        return "stop"
    if isinstance(end, Length):
        return "length"
    return end.cause
