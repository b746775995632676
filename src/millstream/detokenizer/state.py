"""DecodeStatus: everything the detokenizer knows of one request. It dies with the request's final row."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.detokenizer.witness import Witness
from millstream.observe.ledger import Account
from millstream.text.incremental import IncrementalDecoder


@dataclass(slots=True)
class DecodeStatus:
    """The text state of one live request.

    `pending` is text that is stable but held back, because it may be the start of a stop string: the scheduler says how much.
    """

    decoder: IncrementalDecoder
    no_stop_trim: bool
    witness: Witness
    account: Account
    pending: str = ""
