"""What the scheduler sends a detokenizer, and where its own rows go."""

from __future__ import annotations

from typing import Any, ClassVar
from zlib import crc32

from millstream.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    DecodeOptions,
    FinishReason,
    TextRow,
    Timing,
    TokenColumns,
    TokenRow,
    Usage,
)
from millstream.messages.columns import pack_ids, pack_slots
from tests.support.rows import text_rows

USAGE = Usage(prompt_tokens=1, completion_tokens=1)


class Outbox:
    """A sender that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def rows(self, rid: str) -> list[TextRow]:
        batches = [message for message in self.sent if isinstance(message, BatchStrOutput)]
        return [row for row in text_rows(batches) if row.rid == rid]

    def text(self, rid: str) -> str:
        return "".join(row.text for row in self.rows(rid))


def row(rid: str, ids: list[int], *, held_back: int = 0, finish: FinishReason | None = None) -> TokenRow:
    timing = Timing() if finish is not None else None
    return TokenRow(rid=rid, token_ids=ids, usage=USAGE, held_back=held_back, finish=finish, timing=timing)


def options(rid: str, **how: Any) -> DecodeOptions:
    Wire.rids.discard(rid)
    return DecodeOptions(rid, slot_of(rid), **how)


def slot_of(rid: str) -> int:
    return crc32(rid.encode())


class Wire:
    """How rows that say no more than "these tokens" come: as full rows, or in columns, as the scheduler sends them."""

    columns = False
    rids: ClassVar[set[str]] = set()  # those that have had their first row, which is a full one


def batch(*rows: TokenRow, opened: list[DecodeOptions] | None = None) -> BatchTokenIDOutput:
    known = Wire.rids if Wire.columns else ()
    full = [row for row in rows if row.rid not in known or row.finish or row.held_back or not row.token_ids]
    columns = [
        TokenColumns(pack_slots([slot_of(row.rid)]), pack_ids(row.token_ids), len(row.token_ids))
        for row in rows
        if row not in full
    ]
    Wire.rids.update(row.rid for row in rows)
    return BatchTokenIDOutput(full, opened or [], columns)
