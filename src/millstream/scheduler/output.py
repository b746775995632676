"""StepOutput: collects the rows of a step, brings them to the detokenizer that knows their requests, and can do so again.

Filled by the scheduler as requests make tokens or end; sent once a step. Knows nothing of why a request ended.

A detokenizer that dies takes the text of every request with it. The connection that took a request's first row says which
detokenizer knows it: further rows are sent over that connection only, and after a death the request is replayed to the next.
So a request that has ended is kept until its entry worker says that the final row has arrived.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from millstream.messages import (
    BatchTokenIDOutput,
    DecodeOptions,
    Delivered,
    FinishReason,
    Received,
    Replay,
    ReplayedRequest,
    ReplayReq,
    RowDetails,
    TokenColumns,
    TokenRow,
)
from millstream.scheduler.state import Req

MAX_VALUES = 1 << 20  # of details in one message, about 10 MB: the next row goes into another


class ToDetokenizer(Protocol):
    """The way to the detokenizer: see `PushChannel`."""

    def send(self, message: Any) -> int:
        """Hand over one message; returns the number of the connection that took it, 0 for none."""

    def connect(self) -> int:
        """The number of the connection now, 0 for none."""

    @property
    def receiver_pid(self) -> int:
        """The process at the other end."""


class StepOutput:
    """The rows since the last `send`, in the order they were made."""

    def __init__(self, to_detokenizer: ToDetokenizer) -> None:
        self._to_detokenizer = to_detokenizer
        self._connection = 0  # that took the last batch
        self._rows: list[TokenRow] = []
        self._opened: list[Req] = []
        self._num_values = 0  # of the details in `_rows`
        # by entry and tokens a row: slots, ids
        self._columns: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        self._undelivered: dict[tuple[int, str], Req] = {}  # by entry and rid: the rid alone may be in use again elsewhere

    @property
    def num_undelivered(self) -> int:
        """Requests that have ended, and whose final row has not arrived as far as we know."""
        return len(self._undelivered)

    def add(self, req: Req, new_ids: Sequence[int], *, held_back: int = 0, finish: FinishReason | None = None) -> None:
        """Add one row of `req`; `new_ids` are in its `token_ids` already. Its first row carries its decode options along.

        Raises:
            OverflowError: one of `new_ids` is no int32; nothing was added.
        """
        details = None if req.logprobs is None else req.logprobs.next_row(len(new_ids))
        if finish is None and not held_back and details is None and req.connection is not None:
            self._add_to_columns(req, new_ids)
            return
        if finish is not None and req.embedding is not None:
            details = msgspec.structs.replace(details or RowDetails(), embedding=req.embedding)
        timing = None if finish is None else req.timing
        row = TokenRow(req.rid, list(new_ids), req.usage, held_back, finish, timing, details)
        req.held_back = held_back
        if finish is not None:
            req.final_row = row
            self._undelivered[req.entry, req.rid] = req
        if req.connection is None:
            req.connection = self._connection
            self._opened.append(req)
        elif req.connection != self._connection:
            return  # the detokenizer that is there now does not know it; the replay will bring this row, too
        self._rows.append(row)
        if details is not None:
            self._num_values += details.num_values
            if self._num_values > MAX_VALUES:
                self.send()

    def _add_to_columns(self, req: Req, new_ids: Sequence[int]) -> None:
        if req.connection != self._connection:
            return  # as above
        ids = array("i", new_ids)
        columns = self._columns.get((req.entry, len(ids)))
        if columns is None:
            columns = self._columns[req.entry, len(ids)] = array("I"), array("i")
        columns[0].append(req.slot)
        columns[1].extend(ids)
        req.held_back = 0

    def has_row(self, rid: str) -> bool:
        """Whether a full row of `rid` is among those not sent."""
        return any(row.rid == rid for row in self._rows)

    def send(self) -> None:
        """Send all rows so far, if there are any."""
        if not self._rows and not self._columns:
            return
        columns = [
            TokenColumns(slots.tobytes(), ids.tobytes(), width, entry) for (entry, width), (slots, ids) in self._columns.items()
        ]
        batch = BatchTokenIDOutput(self._rows, [_options(req) for req in self._opened], columns)
        connection = self._to_detokenizer.send(batch)
        for req in self._opened:
            req.connection = connection
        self._connection = connection or self._connection
        self._rows, self._opened, self._columns = [], [], {}
        self._num_values = 0

    def pass_on(self, message: Any) -> None:
        """Send something else, after all rows so far."""
        self.send()
        self._to_detokenizer.send(message)

    def confirm(self, message: Delivered) -> None:
        """Final rows have arrived."""
        for rid in message.rids:
            self._undelivered.pop((message.entry, rid), None)

    def forget_entry(self, entry: int) -> None:
        """Nobody waits for the rows of this entry worker any more."""
        for key in [key for key in self._undelivered if key[0] == entry]:
            del self._undelivered[key]

    def replay(self, message: ReplayReq, live: Mapping[str, Req]) -> None:
        """Tell the detokenizer that is there now of those requests, running or ended, that it does not know."""
        self.send()
        connection = self._to_detokenizer.connect()
        if not connection or self._to_detokenizer.receiver_pid != message.detokenizer_pid:
            return  # that one is dead, and may have said more than `message` counts: who asked will ask again
        self._connection = connection
        replayed: list[ReplayedRequest] = []
        num_values = 0
        for received in message.received:
            req = live.get(received.rid)
            if req is None or req.entry != message.entry:
                req = self._undelivered.get((message.entry, received.rid))
            if req is not None and req.connection not in (None, connection):
                req.connection = connection
                replayed.append(_from_start(req, received))
                details = replayed[-1].row.details
                num_values += 0 if details is None else details.num_values
            if num_values > MAX_VALUES:
                self._to_detokenizer.send(Replay(replayed))
                replayed, num_values = [], 0
        if replayed:
            self._to_detokenizer.send(Replay(replayed))


def _options(req: Req) -> DecodeOptions:
    sampling = req.sampling
    return DecodeOptions(
        req.rid,
        req.slot,
        skip_special_tokens=sampling.skip_special_tokens,
        spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        no_stop_trim=sampling.no_stop_trim,
        entry=req.entry,
    )


def _from_start(req: Req, received: Received) -> ReplayedRequest:
    made = req.token_ids[req.num_prompt_tokens :]
    row = req.final_row or TokenRow(req.rid, made, req.usage, req.held_back)
    details = row.details
    if req.logprobs is not None:
        rows = req.logprobs.all_rows()
        details = rows if details is None else msgspec.structs.replace(rows, embedding=details.embedding)
    row = msgspec.structs.replace(row, token_ids=made, details=details)
    return ReplayedRequest(_options(req), row, received.num_tokens, received.num_chars)
