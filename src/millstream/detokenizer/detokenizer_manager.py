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
from millstream.ipc.channel import Sender
from millstream.messages import (
    Abort,
    BatchTokenIDOutput,
    DecodeOptions,
    Measures,
    Replay,
    ReplayedRequest,
    RowDetails,
    StatsReply,
    Stop,
    TextColumns,
    TextRow,
    ToDetokenizer,
    TokenColumns,
    TokenRow,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.messages.finish import EndCause, end_cause
from millstream.observe import families
from millstream.observe.ledger import Ledger
from millstream.observe.tally import Tally, sample
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

NO_ROOM_STATUS = 503  # the scheduler had taken the request on, so this is no matter of how many ask


class DetokenizerManager:
    """Turns token rows into text rows, one decoder a live request, at most `max_states` of them."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        to_entry: Callable[[int], Sender],
        max_states: int = ServerConfig.max_detokenizer_states,
        ledger: Ledger | None = None,
        tally: Tally | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_states = max_states
        self._to_entry = to_entry  # by the number of the worker
        self._entries: dict[int, EntryRows] = {}
        self._clock = clock
        self._statuses: dict[str, DecodeStatus] = {}
        self.dropped_rows = 0  # rows whose request is not known (any more)
        self._ledger = ledger or Ledger("detokenizer")
        self._tally = tally or Tally("detokenizer")
        self._ledger.watch("decode_status", lambda: len(self._statuses))

    def __len__(self) -> int:
        return len(self._statuses)

    def handle(self, message: ToDetokenizer) -> None:
        """Process one message of the scheduler and send what follows from it."""
        match message:
            case BatchTokenIDOutput():
                refused = [(options, why) for options in message.opened if (why := self._open(options)) is not None]
                for columns in message.columns:
                    self._take_columns(columns)
                for row in message.rows:
                    self._take_row(row)
                for options, why in refused:
                    self._refuse(options, why)
            case Replay():
                for request in message.requests:
                    self._replay(request)
            case StatsReply():
                self._entry(message.entry).sender.send(self._stats(message))
        for entry in self._entries.values():
            entry.send()

    def scheduler_gone(self) -> None:
        """The scheduler is dead, and with it every request: no final rows will come."""
        if self._statuses:
            log.warning("the scheduler is gone; the text of its %d requests is dropped", len(self._statuses))
        for status in list(self._statuses.values()):
            self._close(status, "engine_error")

    def _entry(self, number: int) -> EntryRows:
        if number not in self._entries:  # who comes may have taken the place of one that died, and nobody tells us of that
            self._entries = {each: entry for each, entry in self._entries.items() if not entry.is_idle}
            self._entries[number] = EntryRows(self._to_entry(number))
        return self._entries[number]

    def _stats(self, reply: StatsReply) -> StatsReply:
        """Add our part to what the scheduler said of itself."""
        measures = None if reply.measures is None else self._measures()
        return msgspec.structs.replace(
            reply,
            detokenizer_requests=len(self._statuses),
            dropped_rows=reply.dropped_rows + self.dropped_rows,
            ledger_mismatches=reply.ledger_mismatches + self._ledger.reconcile(),
            books=reply.books if reply.ledger is None else [*reply.books, self._ledger.book(reply.ledger)],
            measures=None if reply.measures is None or measures is None else [*reply.measures, measures],
        )

    def _measures(self) -> Measures | None:
        held = self._ledger.totals().items()
        return self._tally.measures(
            [
                sample(families.DROPPED_ROWS, self.dropped_rows),
                sample(families.LIVE, len(self._statuses), "detokenizer"),
                sample(families.MISMATCHES, self._ledger.mismatches, "detokenizer"),
                *(sample(families.HELD, amount, "detokenizer", kind) for kind, amount in held),
            ]
        )

    def _open(self, options: DecodeOptions) -> Abort | None:
        """Make the state of a new request; returns why it ends here, where it cannot be made."""
        if len(self._statuses) >= self._max_states:
            log.warning("request %s found the detokenizer's table full: it has %d states", options.rid, len(self._statuses))
            message = f"The detokenizer has no room for another request: max_detokenizer_states is {self._max_states}."
            return Abort("engine_error", message, NO_ROOM_STATUS)
        try:
            status = self._new_status(options)
        except Exception as error:
            log.exception("no decoder could be made for %s", options.rid)
            return _undecodable(error)
        self._keep(status)
        return None

    def _new_status(self, options: DecodeOptions) -> DecodeStatus:
        how = {
            "skip_special_tokens": options.skip_special_tokens,
            "spaces_between_special_tokens": options.spaces_between_special_tokens,
        }
        decoder, second = self._tokenizer.incremental(**how), self._tokenizer.incremental(**how)
        account = self._ledger.open(options.rid)
        account.acquire("decode_status")
        return DecodeStatus(
            rid=options.rid,
            slot=options.slot,
            decoder=decoder,
            no_stop_trim=options.no_stop_trim,
            witness=Witness(second, no_stop_trim=options.no_stop_trim),
            account=account,
            entry=self._entry(options.entry),
        )

    def _keep(self, status: DecodeStatus) -> None:
        self._statuses[status.rid] = status.entry.by_slot[status.slot] = status

    def _close(self, status: DecodeStatus, cause: EndCause) -> None:
        del self._statuses[status.rid], status.entry.by_slot[status.slot]
        status.settle(cause)

    def _refuse(self, options: DecodeOptions, why: Abort) -> None:
        """A final row for a request that ends here. What the scheduler still makes of it is dropped."""
        self._entry(options.entry).rows.append(TextRow(options.rid, options.slot, "", [], None, why))

    def _take_columns(self, columns: TokenColumns) -> None:
        """Make the text of rows that only go on. One that goes nowhere is left out; one that fails ends its request."""
        entry = self._entry(columns.entry)
        by_slot = entry.by_slot
        texts: list[str] = []
        lost: set[int] = set()
        for slot, token_ids in columns.rows():
            status = by_slot.get(slot)
            if status is None:
                self.dropped_rows += 1
                lost.add(slot)
                continue
            try:
                texts.append(status.push(token_ids))
            except Exception as error:
                log.exception("decoding a row of %s failed", status.rid)
                status.entry.rows.append(TextRow(status.rid, slot, "", token_ids, None, _undecodable(error)))
                self._close(status, "engine_error")
                lost.add(slot)
        slots, ids = columns.slots, columns.token_ids
        if lost:
            kept = [row for row in columns.rows() if row[0] not in lost]
            slots = pack_slots(slot for slot, _ in kept)
            ids = pack_ids(token_id for _, token_ids in kept for token_id in token_ids)
        if texts:
            entry.columns.append(TextColumns(slots, ids, columns.width, texts))

    def _take_row(self, row: TokenRow) -> None:
        status = self._statuses.get(row.rid)
        if status is None:
            self.dropped_rows += 1
            return
        made = self._decode(status, row)
        if made.finish is not None:
            self._close(status, end_cause(made.finish))
        status.entry.rows.append(made)

    def _replay(self, request: ReplayedRequest) -> None:
        """Make again what a detokenizer before us knew of a request, and send what its client does not have yet.

        One that has ended leaves nothing here, so its rid may be another's by now. The table's limit is for new requests.
        """
        try:
            status = self._new_status(request.options)
        except Exception as error:
            log.exception("no decoder could be made for %s", request.options.rid)
            self._refuse(request.options, _undecodable(error))
            return
        made = self._decode(status, request.row)
        if made.finish is None:
            self._keep(status)
        else:
            status.settle(end_cause(made.finish))
        made.text = made.text[request.num_chars :]
        made.token_ids = made.token_ids[request.num_tokens :]
        if made.details is not None:
            made.details = _not_received(made.details, request.num_tokens)
        if made.text or made.token_ids or made.finish is not None:
            status.entry.rows.append(made)

    def _decode(self, status: DecodeStatus, row: TokenRow) -> TextRow:
        """The text row of a full row. A decoder's fault belongs to one request, never to the process: it ends it."""
        finish, digest = row.finish, None
        try:
            text = _visible_text(status, row)
            digest = status.witness.add(row)
        except Exception as error:
            log.exception("decoding a row of %s failed", row.rid)
            text = ""
            if not isinstance(finish, Abort):  # a stop or length would pass for a whole answer, and this one lacks text
                finish = _undecodable(error)
        status.started = status.started or self._clock()
        if row.timing is not None:
            row.timing.first_detokenized = status.started
            row.timing.detokenized = self._clock()
        return TextRow(row.rid, status.slot, text, row.token_ids, row.usage, finish, row.timing, digest, row.details)


def _undecodable(error: Exception) -> Abort:
    return Abort("engine_error", f"its tokens could not be decoded: {error}")


def _not_received(details: RowDetails, num_tokens: int) -> RowDetails:
    """What is new of the details of all rows to a client that has `num_tokens` tokens. The prompt's came with the first."""
    logprobs = None if details.logprobs is None else details.logprobs.part(num_tokens)
    return RowDetails(logprobs, None if num_tokens else details.prompt_logprobs, details.embedding)


def _visible_text(status: DecodeStatus, row: TokenRow) -> str:
    """What this row adds to the text its client may see.

    The rows of a request joined are its whole text: everything stable, less what the scheduler says may still become a stop
    string; at the end the rest, less what it says was matched. An aborted text ends where it was, within a character or not.
    """
    finish = row.finish
    if finish is None:
        text = status.decoder.push(row.token_ids)
        if not row.held_back and not status.num_pending:
            return text
    else:
        matched = finish.matched if isinstance(finish, Stop) else None
        is_stop_token = isinstance(matched, int) and not status.no_stop_trim
        text = status.decoder.push(row.token_ids[:-1] if is_stop_token else row.token_ids)
        if not isinstance(matched, str) and not isinstance(finish, Abort):
            text += status.decoder.flush()
    status.pending.append(text)
    status.num_pending += len(text)
    visible = status.num_pending - row.held_back
    if not visible:
        return ""
    text = "".join(status.pending)
    status.pending = [text[visible:]]
    status.num_pending = row.held_back
    return text[:visible]
