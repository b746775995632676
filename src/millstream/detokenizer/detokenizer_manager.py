"""DetokenizerManager: owner of rid -> DecodeStatus; decides which text is visible, never which request ends.

Called by the detokenizer's loop with each message of the scheduler. Knows nothing of HTTP, sampling or pages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from millstream.config import ServerConfig
from millstream.detokenizer.state import DecodeStatus, EntryRows
from millstream.detokenizer.witness import Witness
from millstream.errors import OverloadError
from millstream.ipc.channel import Sender
from millstream.messages import (
    Abort,
    BatchTokenIDOutput,
    DecodeOptions,
    Replay,
    ReplayedRequest,
    StatsReply,
    Stop,
    TextRow,
    ToDetokenizer,
    TokenRow,
)
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class DetokenizerManager:
    """Turns token rows into text rows, one decoder a live request, at most `max_states` of them."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        to_entry: Callable[[int], Sender],
        max_states: int = ServerConfig.max_detokenizer_states,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_states = max_states
        self._to_entry = to_entry  # by the number of the worker
        self._entries: dict[int, EntryRows] = {}
        self._clock = clock
        self._statuses: dict[str, DecodeStatus] = {}
        self.dropped_rows = 0  # rows whose request is not known (any more)

    def __len__(self) -> int:
        return len(self._statuses)

    def handle(self, message: ToDetokenizer) -> None:
        """Process one message of the scheduler and send what follows from it."""
        match message:
            case BatchTokenIDOutput():
                refused = [options for options in message.opened if not self._open(options)]
                for row in message.rows:
                    self._take_row(row)
                if refused:
                    self._refuse(refused, message.rows)
            case Replay():
                for request in message.requests:
                    self._replay(request)
            case StatsReply():
                reply = msgspec.structs.replace(
                    message, detokenizer_requests=len(self._statuses), dropped_rows=message.dropped_rows + self.dropped_rows
                )
                self._entry(message.entry).sender.send(reply)
        for entry in self._entries.values():
            entry.send()

    def scheduler_gone(self) -> None:
        """The scheduler is dead, and with it every request: no final rows will come."""
        if self._statuses:
            log.warning("the scheduler is gone; the text of its %d requests is dropped", len(self._statuses))
        self._statuses.clear()

    def _entry(self, number: int) -> EntryRows:
        if number not in self._entries:
            self._entries[number] = EntryRows(self._to_entry(number))
        return self._entries[number]

    def _open(self, options: DecodeOptions) -> bool:
        """Make the state of a new request; False where the table is full."""
        if len(self._statuses) >= self._max_states:
            return False
        self._statuses[options.rid] = self._new_status(options)
        return True

    def _new_status(self, options: DecodeOptions) -> DecodeStatus:
        how = {
            "skip_special_tokens": options.skip_special_tokens,
            "spaces_between_special_tokens": options.spaces_between_special_tokens,
        }
        return DecodeStatus(
            decoder=self._tokenizer.incremental(**how),
            no_stop_trim=options.no_stop_trim,
            witness=Witness(self._tokenizer.incremental(**how), no_stop_trim=options.no_stop_trim),
            entry=self._entry(options.entry),
        )

    def _refuse(self, refused: list[DecodeOptions], rows: list[TokenRow]) -> None:
        """A final row for each request that found the table full. What the scheduler still makes of it is dropped."""
        log.warning("%d requests found the detokenizer's table full: it has %d states", len(refused), len(self._statuses))
        message = f"The detokenizer has no room for another request: max_detokenizer_states is {self._max_states}."
        usages = {row.rid: row.usage for row in rows}
        finish = Abort("engine_error", message, OverloadError.status)
        for each in refused:
            self._entry(each.entry).rows.append(TextRow(each.rid, "", [], usages[each.rid], finish))

    def _take_row(self, row: TokenRow) -> None:
        status = self._statuses.get(row.rid)
        if status is None:
            self.dropped_rows += 1
            return
        made = self._decode(status, row)
        if made.finish is not None:
            del self._statuses[row.rid]
        status.entry.rows.append(made)

    def _replay(self, request: ReplayedRequest) -> None:
        """Make again what a detokenizer before us knew of a request, and send what its client does not have yet.

        One that has ended leaves nothing here, so its rid may be another's by now. The table's limit is for new requests.
        """
        status = self._new_status(request.options)
        made = self._decode(status, request.row)
        if made.finish is None:
            self._statuses[made.rid] = status
        made.text = made.text[request.num_chars :]
        made.token_ids = made.token_ids[request.num_tokens :]
        if made.text or made.token_ids or made.finish is not None:
            status.entry.rows.append(made)

    def _decode(self, status: DecodeStatus, row: TokenRow) -> TextRow:
        finish = row.finish
        timing = row.timing
        digest = None
        try:
            text = _visible_text(status, row)
            digest = status.witness.add(row)
        except Exception as error:  # a decoder's fault belongs to one request, never to the process
            log.exception("decoding a row of %s failed", row.rid)
            text, finish = "", finish or Abort("engine_error", f"its tokens could not be decoded: {error}")
        if finish is not None and timing is not None:
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
