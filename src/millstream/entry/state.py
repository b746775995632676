"""ReqState: the entry's side of one request, from registration to its end. Owned by the TokenizerManager.

Rows that the consumer has not taken yet are merged, so a slow reader costs one row, whatever the model makes.
"""

from __future__ import annotations

from enum import Enum, auto

from millstream.entry.failure import Failure
from millstream.errors import InvariantError
from millstream.messages import FinishReason, GenerateReqInput, TextRow, Timing, Usage
from millstream.messages.finish import EndCause, end_cause
from millstream.observe.ledger import Account
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
        "account",
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

    def __init__(self, obj: GenerateReqInput, account: Account) -> None:
        self.obj = obj
        self.account = account  # settled when it has ended and nobody waits for its rows
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
        """Change phase; to FINISHED only by `end`.

        Raises:
            InvariantError: the move is not allowed.
        """
        if phase not in _NEXT[self.phase]:
            raise InvariantError(f"request `{self.rid}` cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase

    def end(self, end: FinishReason | Failure) -> None:
        """Go to FINISHED: the only way there, once for each request.

        Raises:
            InvariantError: it has ended already.
        """
        self.move(Phase.FINISHED)
        if isinstance(end, Failure):
            self.failure = self.failure or end
        else:
            self.finish = end

    @property
    def cause(self) -> EndCause:
        """How it ended, in a word: what its client was told, where a failure came before the final row.

        Raises:
            InvariantError: it has not ended.
        """
        end = self.failure or self.finish
        if end is None:
            raise InvariantError(f"request `{self.rid}` has not ended")
        return end_cause(end)

    @property
    def waiting_chars(self) -> int:
        """Characters that wait to be taken."""
        return 0 if self._row is None else len(self._row.text) + sum(map(len, self._texts))

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
            self.end(row.finish)
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
