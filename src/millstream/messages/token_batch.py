"""BatchTokenIDOutput: scheduler -> detokenizer. What one step made, a row a request."""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.columns import TokenColumns
from millstream.messages.details import RowDetails
from millstream.messages.finish import FinishReason
from millstream.messages.timing import Timing, Usage


class DecodeOptions(Struct, frozen=True, omit_defaults=True, gc=False):
    """How to turn one request's ids into text, and for which entry worker. Comes once, with the request's first row."""

    rid: str
    slot: int  # what the request is called in columns
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    entry: int = 0


class TokenRow(Struct, array_like=True, omit_defaults=True, gc=False):
    """New tokens of one request.

    `held_back` counts characters at the end of all text made so far that must not be shown yet, because they may be the
    start of a stop string. On a final row with `Stop(matched=str)` it counts the characters from where the text is cut
    (the start of the match, or its end with `no_stop_trim`): the detokenizer trims by this evidence and never searches.
    With `Abort` it is what the last row held back, and stays so. On a final row with any other reason it is 0. The last id of
    a final `Stop(matched=int)` row is the stop token itself.
    """

    rid: str
    token_ids: list[int]
    usage: Usage
    held_back: int = 0  # characters
    finish: FinishReason | None = None
    timing: Timing | None = None  # on the final row only
    details: RowDetails | None = None


class BatchTokenIDOutput(Struct, omit_defaults=True, tag="tokens", gc=False):
    """All rows of one step. `opened` holds the options of requests whose first row is in this batch."""

    rows: list[TokenRow]
    opened: list[DecodeOptions] = []
    columns: list[TokenColumns] = []
