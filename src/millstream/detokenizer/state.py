"""DecodeStatus: everything the detokenizer knows of one request. It dies with the request's final row."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.detokenizer.witness import Witness
from millstream.observe.ledger import Account
from millstream.text.incremental import IncrementalDecoder


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
    account: Account
    pending: list[str] = field(default_factory=list)
    num_pending: int = 0  # characters in `pending`

    def push(self, token_ids: list[int]) -> str:
        """Take tokens that end nothing, with nothing held back; return the text they make visible."""
        text = self.decoder.push(token_ids)
        self.witness.push(token_ids)
        if self.num_pending:
            text = "".join(self.pending) + text
            self.pending.clear()
            self.num_pending = 0
        return text
