"""BatchStrOutput: detokenizer -> entry. The rows of a `BatchTokenIDOutput` with text in place of decode state."""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.columns import TextColumns
from millstream.messages.details import RowDetails
from millstream.messages.finish import FinishReason
from millstream.messages.timing import Timing, Usage


class TextRow(Struct, array_like=True, omit_defaults=True, gc=False):
    """New stable text of one request (often empty: a character may span tokens) and the facts of its `TokenRow`.

    A final row without `usage` and `timing` is the detokenizer's own: it could not go on, and the scheduler still runs the
    request until the entry tells it.
    """

    rid: str
    slot: int  # what the request is called in columns
    text: str
    token_ids: list[int]
    usage: Usage | None  # None in a row of the detokenizer's own
    finish: FinishReason | None = None
    timing: Timing | None = None  # on the final row only
    digest: int | None = None  # on the final row: the `text.digest` of all text of the request
    details: RowDetails | None = None


class BatchStrOutput(Struct, omit_defaults=True, tag="text", gc=False):
    """All rows of one step."""

    rows: list[TextRow]
    columns: list[TextColumns] = []
