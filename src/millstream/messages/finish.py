"""Why a request ended: decided once by its owner, read by everybody."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

AbortCause = Literal["client_gone", "aborted", "deadline", "engine_error", "drain", "slow_reader"]


class Stop(Struct, frozen=True, tag="stop", gc=False):
    """The model finished: `matched` is the stop token id, the stop string, or None where nothing in particular matched."""

    matched: int | str | None = None


class Length(Struct, frozen=True, tag="length", gc=False):
    """`limit` new tokens were made, the most this request may have."""

    limit: int


class Abort(Struct, frozen=True, tag="abort", gc=False):
    """Ended from outside or by a fault. `status` is the HTTP status where nothing was sent yet."""

    cause: AbortCause
    message: str
    status: int = 500


FinishReason = Stop | Length | Abort
