"""ReqState: the entry's side of one request, from registration to its end. Owned by the TokenizerManager.

Rows that the consumer has not taken yet are merged, so a slow reader costs one row, whatever the model makes.
"""

from __future__ import annotations

from enum import Enum, auto

from millstream.entry.failure import Failure
from millstream.errors import InvariantError
from millstream.messages import FinishReason, GenerateReqInput, Received, TextRow, Timing, Usage
from millstream.text.rolling import TextDigest


class Phase(Enum):
    """Where a request is, seen from the entry."""

    CREATED = auto()  # registered, the scheduler does not know it
    DISPATCHED = auto()  # sent: the scheduler may hold resources
    RECEIVING = auto()  # rows have come
    FINISHED = auto()  # nothing more comes


_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.CREATED: frozenset({Phase.DISPATCHED, Phase.FINISHED}),  # FINISHED: ended before it was sent
    Phase.DISPATCHED: frozenset({Phase.RECEIVING, Phase.FINISHED}),
    Phase.RECEIVING: frozenset({Phase.FINISHED}),
    Phase.FINISHED: frozenset(),
}


class ReqState:
    """One live rid."""

    __slots__ = (
        "_digest",
        "_row",
        "_texts",
        "abort_sent",
        "accepted",
        "failure",
        "finish",
        "has_verdict",
        "index",
        "input_ids",
        "mismatched",
        "obj",
        "phase",
        "released",
        "usage",
    )

    def __init__(self, obj: GenerateReqInput) -> None:
        self.obj = obj
        self.index = 0  # among the requests of its call
        self.phase = Phase.CREATED
        self.abort_sent = False  # at most one AbortReq, in any phase after dispatch
        self.accepted = False  # by the scheduler's verdict, or by a row: those come by another way and may be faster
        self.has_verdict = False
        self.released = False  # nobody waits for rows any more
        self.input_ids: list[int] = obj.input_ids or []
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None
        self.failure: Failure | None = None
        self.mismatched = False  # what was handed on is not what the ids say: a bug
        self._digest = TextDigest()  # of what was handed on
        self._row: TextRow | None = None
        self._texts: list[str] = []

    @property
    def rid(self) -> str:
        """The request's key in every process."""
        return self.obj.rid

    @property
    def dispatched(self) -> bool:
        """Whether the scheduler may know this rid, so that leaving needs an AbortReq."""
        return self.phase in (Phase.DISPATCHED, Phase.RECEIVING)

    def move(self, phase: Phase) -> None:
        """Change phase.

        Raises:
            InvariantError: the move is not allowed.
        """
        if phase not in _NEXT[self.phase]:
            raise InvariantError(f"request `{self.rid}` cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase

    @property
    def has_rows(self) -> bool:
        """Whether rows wait to be taken."""
        return self._row is not None

    def push(self, row: TextRow) -> None:
        """Take a row from the detokenizer, in order. Takes over `row`."""
        if self.phase is Phase.DISPATCHED:
            self.move(Phase.RECEIVING)
        self.usage = row.usage
        if row.finish is not None:
            self.finish = row.finish
            self.move(Phase.FINISHED)
        if self.released:
            return
        if self._row is None:
            self._row = row
            return
        self._texts.append(row.text)
        waiting = self._row
        waiting.token_ids.extend(row.token_ids)
        waiting.usage, waiting.finish, waiting.timing = row.usage, row.finish, row.timing
        waiting.digest = row.digest

    def take(self) -> TextRow | None:
        """Everything that came since the last call, as one row; None where nothing did."""
        row, self._row = self._row, None
        if row is None:
            return None
        if self._texts:
            row.text += "".join(self._texts)
            self._texts.clear()
        self.note_handed_on(row)
        return row

    def note_handed_on(self, row: TextRow) -> None:
        """Count `row` as given to the client's side: once for each row, in order. The last one proves all text."""
        self._digest.add(row.text)
        if row.digest is not None:
            self.mismatched = row.digest != self._digest.value

    @property
    def received(self) -> Received:
        """How much has come of it, taken or not."""
        waiting = len(self._row.text) + sum(map(len, self._texts)) if self._row is not None else 0
        num_tokens = 0 if self.usage is None else self.usage.completion_tokens
        return Received(self.rid, num_tokens, self._digest.length + waiting)

    def adopt_timing(self, timing: Timing) -> None:
        """Take over the stamps of the other processes from the final row, and keep our own."""
        ours = self.obj.timing
        timing.received, timing.adapted, timing.tokenized = ours.received, ours.adapted, ours.tokenized
        timing.first_written = ours.first_written
        self.obj.timing = timing

    def drop_rows(self) -> None:
        """Nobody reads this request any more: forget what waits, and what comes."""
        self.released = True
        self._row = None
        self._texts.clear()
