"""What is said after a detokenizer died and another took its place: nothing is lost, because ids are kept until text arrived.

`Delivered` is sent all the time: it says until when the scheduler must be able to repeat a request that has ended.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.token_batch import DecodeOptions, TokenRow


class Delivered(Struct, frozen=True, tag="delivered", gc=False):
    """The final rows of these requests have arrived. entry -> scheduler, which need not keep their ids any more."""

    rids: list[str]
    entry: int = 0


class Received(Struct, frozen=True, array_like=True, gc=False):
    """How much of one request its entry worker has: `num_chars` characters of text, `num_tokens` ids."""

    rid: str
    num_tokens: int
    num_chars: int


class ReplayReq(Struct, frozen=True, tag="replay_req"):
    """There is a new detokenizer, and all that those before it said was read. entry -> scheduler.

    Answered by a `Replay` of those requests that it does not know. All live requests of the worker are listed. Out of date,
    and without an answer, once process `detokenizer_pid` is not the one that is there: then another such message follows.
    """

    received: list[Received]
    detokenizer_pid: int
    entry: int = 0


class ReplayedRequest(Struct, frozen=True, array_like=True):
    """One request from its first id on: `row` holds all ids so far; the client's side has the first part already."""

    options: DecodeOptions
    row: TokenRow
    num_tokens: int
    num_chars: int


class Replay(Struct, frozen=True, tag="replay"):
    """Requests that the detokenizer has not seen and whose clients have a part of. scheduler -> detokenizer."""

    requests: list[ReplayedRequest]
