"""DecodeStatus: everything the detokenizer knows of one request. It dies with the request's final row."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.detokenizer.witness import Witness
from millstream.ipc.channel import Sender
from millstream.messages import BatchStrOutput, TextRow
from millstream.text.incremental import IncrementalDecoder


@dataclass(slots=True)
class EntryRows:
    """What was made for one entry worker and is not sent yet."""

    sender: Sender
    rows: list[TextRow] = field(default_factory=list)

    def send(self) -> None:
        """Send all rows so far, if there are any."""
        if self.rows:
            self.sender.send(BatchStrOutput(self.rows))
            self.rows = []


@dataclass(slots=True)
class DecodeStatus:
    """The text state of one live request.

    `pending` is text that is stable but held back, because it may be the start of a stop string: the scheduler says how much.
    """

    decoder: IncrementalDecoder
    no_stop_trim: bool
    witness: Witness
    entry: EntryRows
    pending: str = ""
