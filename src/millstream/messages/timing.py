"""Facts that travel with a request through every hop: stage stamps and token counts."""

from __future__ import annotations

from msgspec import Struct


class Timing(Struct, kw_only=True, omit_defaults=True, gc=False):
    """When each stage of one request ended, in seconds of `time.monotonic()` (one clock for all processes of a machine).

    Each owner fills its own stamps; 0.0 means the stage was not reached. `observe.timeline` says what lies between two.
    """

    received: float = 0.0  # entry: the HTTP body was read
    adapted: float = 0.0  # entry: protocol checked, chat template rendered
    tokenized: float = 0.0  # entry: ids known
    checked: float = 0.0  # entry: its grammar is known to compile; only where it has one
    queued: float = 0.0  # scheduler: taken from the socket
    admitted: float = 0.0  # scheduler: first time it got pages and a slot
    prefilled: float = 0.0  # scheduler: first token sampled
    decoded: float = 0.0  # scheduler: last token settled
    finished: float = 0.0  # scheduler: its final row was made
    first_detokenized: float = 0.0  # detokenizer: first row decoded
    detokenized: float = 0.0  # detokenizer: last text made
    first_written: float = 0.0  # entry: first text handed to the connection
    lost: float = 0.0  # entry: the detokenizer that had made its text so far was gone
    replayed: float = 0.0  # entry: another one was asked to go on; only where that happened
    written: float = 0.0  # entry: last byte handed to the connection
    journey: bytes = b""  # scheduler: an encoded `Journey`, with the final row


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Token counts of one request. `cached_tokens` counts prompt tokens whose KV came from the prefix cache.

    `verify_steps` are those that brought the tokens after the first one, where drafts are on: with them, fewer than tokens.
    `retractions`: how often its pages went to others and were computed again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    verify_steps: int = 0
    retractions: int = 0
