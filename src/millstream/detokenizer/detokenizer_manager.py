"""DetokenizerManager: owner of rid -> DecodeStatus; decides which text is visible, never which request ends.

Called by the detokenizer's loop with each message of the scheduler. Knows nothing of HTTP, sampling or pages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from millstream.config import ServerConfig
from millstream.detokenizer.state import DecodeStatus
from millstream.detokenizer.witness import Witness
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

NO_ROOM_STATUS = 503  # the scheduler had taken the request on, so this is no matter of how many ask


class DetokenizerManager:
    """Turns token rows into text rows, one decoder a live request, at most `max_states` of them."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        to_entry: Sender,
        max_states: int = ServerConfig.max_detokenizer_states,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_states = max_states
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
        refused = {options.rid: why for options in message.opened if (why := self._open(options)) is not None}
        rows = [row for row in map(self._row, message.rows) if row is not None]
        if refused:
            rows += self._refusals(refused, message.rows)
        if rows:
            self._to_entry.send(BatchStrOutput(rows))

    def _open(self, options: DecodeOptions) -> Abort | None:
        """Make the state of a new request; returns why it ends here, where it cannot be made."""
        if len(self._statuses) >= self._max_states:
            log.warning("request %s found the detokenizer's table full: it has %d states", options.rid, len(self._statuses))
            message = f"The detokenizer has no room for another request: max_detokenizer_states is {self._max_states}."
            return Abort("engine_error", message, NO_ROOM_STATUS)
        try:
            self._statuses[options.rid] = self._new_status(options)
        except Exception as error:
            log.exception("no decoder could be made for %s", options.rid)
            return Abort("engine_error", f"its tokens could not be decoded: {error}")
        return None

    def _new_status(self, options: DecodeOptions) -> DecodeStatus:
        how = {
            "skip_special_tokens": options.skip_special_tokens,
            "spaces_between_special_tokens": options.spaces_between_special_tokens,
        }
        return DecodeStatus(
            decoder=self._tokenizer.incremental(**how),
            no_stop_trim=options.no_stop_trim,
            witness=Witness(self._tokenizer.incremental(**how), no_stop_trim=options.no_stop_trim),
        )

    def _refusals(self, refused: dict[str, Abort], rows: list[TokenRow]) -> list[TextRow]:
        """A final row for each request that ends here. What the scheduler still makes of it is dropped."""
        usages = {row.rid: row.usage for row in rows}
        return [TextRow(rid=rid, text="", token_ids=[], usage=usages[rid], finish=why) for rid, why in refused.items()]

    def _row(self, row: TokenRow) -> TextRow | None:
        status = self._statuses.get(row.rid)
        if status is None:
            self.dropped_rows += 1
            return None
        finish = row.finish
        timing = row.timing
        digest = None
        try:
            text = _visible_text(status, row)
            digest = status.witness.add(row)
        except Exception as error:  # a decoder's fault belongs to one request, never to the process
            log.exception("decoding a row of %s failed", row.rid)
            text, finish = "", finish or Abort("engine_error", f"its tokens could not be decoded: {error}")
        if finish is not None:
            del self._statuses[row.rid]
            if timing is not None:
                timing.detokenized = self._clock()
        return TextRow(row.rid, text, row.token_ids, row.usage, finish, timing, digest)


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
