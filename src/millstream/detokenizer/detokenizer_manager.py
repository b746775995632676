"""DetokenizerManager: owner of rid -> DecodeStatus; decides which text is visible, never which request ends.

Called by the detokenizer's loop with each message of the scheduler. Knows nothing of HTTP, sampling or pages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from millstream.detokenizer.state import DecodeStatus
from millstream.ipc.channel import Sender
from millstream.messages import (
    Abort,
    BatchStrOutput,
    BatchTokenIDOutput,
    DecodeOptions,
    StatsReply,
    Stop,
    TextRow,
    TokenRow,
)
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class DetokenizerManager:
    """Turns token rows into text rows, one decoder a live request."""

    def __init__(self, *, tokenizer: Tokenizer, to_entry: Sender, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer = tokenizer
        self._to_entry = to_entry
        self._clock = clock
        self._statuses: dict[str, DecodeStatus] = {}
        self.dropped_rows = 0  # rows whose request is not known (any more)

    def __len__(self) -> int:
        return len(self._statuses)

    def handle(self, message: BatchTokenIDOutput | StatsReply) -> None:
        """Process one message of the scheduler and send what follows from it."""
        if isinstance(message, StatsReply):
            reply = msgspec.structs.replace(
                message, detokenizer_requests=len(self._statuses), dropped_rows=message.dropped_rows + self.dropped_rows
            )
            self._to_entry.send(reply)
            return
        for options in message.opened:
            self._open(options)
        rows = [row for row in map(self._row, message.rows) if row is not None]
        if rows:
            self._to_entry.send(BatchStrOutput(rows))

    def _open(self, options: DecodeOptions) -> None:
        self._statuses[options.rid] = DecodeStatus(
            decoder=self._tokenizer.incremental(
                skip_special_tokens=options.skip_special_tokens,
                spaces_between_special_tokens=options.spaces_between_special_tokens,
            ),
            no_stop_trim=options.no_stop_trim,
        )

    def _row(self, row: TokenRow) -> TextRow | None:
        status = self._statuses.get(row.rid)
        if status is None:
            self.dropped_rows += 1
            return None
        finish = row.finish
        timing = row.timing
        try:
            text = _visible_text(status, row)
        except Exception as error:  # a decoder's fault belongs to one request, never to the process
            log.exception("decoding a row of %s failed", row.rid)
            text, finish = "", finish or Abort("engine_error", f"its tokens could not be decoded: {error}")
        if finish is not None:
            del self._statuses[row.rid]
            if timing is not None:
                timing.detokenized = self._clock()
        return TextRow(row.rid, text, row.token_ids, row.usage, finish, timing)


def _visible_text(status: DecodeStatus, row: TokenRow) -> str:
    """What this row adds to the text its client may see.

    The rows of a request joined are its whole text: everything stable, less what the scheduler says may still become a stop
    string; at the end the rest, less what it says was matched.
    """
    finish = row.finish
    if finish is None:
        text = status.decoder.push(row.token_ids)
        if not row.held_back and not status.pending:
            return text
    else:
        matched = finish.matched if isinstance(finish, Stop) else None
        is_stop_token = isinstance(matched, int) and not status.no_stop_trim
        text = status.decoder.push(row.token_ids[:-1] if is_stop_token else row.token_ids)
        if not isinstance(matched, str):
            text += status.decoder.flush()
    text = status.pending + text
    visible = len(text) - row.held_back
    status.pending = text[visible:]
    return text[:visible]
