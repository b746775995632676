"""DecodeStatus: everything the detokenizer knows of one request. It dies with the request's final row."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.detokenizer.witness import Witness
from millstream.ipc.channel import Sender
from millstream.messages import BatchStrOutput, TextColumns, TextRow
from millstream.messages.finish import EndCause
from millstream.observe.ledger import Account
from millstream.text.incremental import IncrementalDecoder


@dataclass(slots=True)
class EntryRows:
    """The requests of one entry worker, and what was made for it and is not sent yet."""

    sender: Sender
    rows: list[TextRow] = field(default_factory=list)
    columns: list[TextColumns] = field(default_factory=list)
    by_slot: dict[int, DecodeStatus] = field(default_factory=dict)  # the states of its live requests

    @property
    def is_idle(self) -> bool:
        """Whether it has no request and nothing to be sent."""
        return not (self.by_slot or self.rows or self.columns)

    def send(self) -> None:
        """Send all rows so far, if there are any."""
        if self.rows or self.columns:
            self.sender.send(BatchStrOutput(self.rows, self.columns))
            self.rows, self.columns = [], []


@dataclass(slots=True)
class DecodeStatus:
    """The text state of one live request.

    `pending` is text that is stable but held back, because it may be the start of a stop: the scheduler says how much. It stays
    in pieces, since a regex may hold back all there is: copying that with every row would make a long answer quadratic.
    """

    rid: str
    slot: int
    decoder: IncrementalDecoder
    no_stop_trim: bool
    witness: Witness
    entry: EntryRows
    account: Account
    pending: list[str] = field(default_factory=list)
    num_pending: int = 0  # characters in `pending`
    started: float = 0.0  # when its first row was decoded, in seconds of the manager's clock

    def push(self, token_ids: list[int]) -> str:
        """Take tokens that end nothing, with nothing held back; return the text they make visible."""
        text = self.decoder.push(token_ids)
        self.witness.push(token_ids)
        if self.num_pending:
            text = "".join(self.pending) + text
            self.pending.clear()
            self.num_pending = 0
        return text

    def settle(self, cause: EndCause) -> None:
        """Say in the books that it is given back."""
        self.account.release("decode_status", cause)
        self.account.settle(cause)
