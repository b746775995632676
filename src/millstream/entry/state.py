"""ReqState: the entry's side of one request, from registration to its end. Owned by the TokenizerManager.

Rows that the consumer has not taken yet are merged, so a slow reader costs one row, whatever the model makes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from millstream.entry.failure import Failure
from millstream.errors import InvariantError
from millstream.messages import FinishReason, GenerateReqInput, Received, RowDetails, TextRow, Timing, Usage
from millstream.messages.details import joined
from millstream.messages.finish import AbortCause, EndCause, end_cause
from millstream.observe.ledger import Account, ReleaseCause
from millstream.text.digest import digest_of


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
        "_details",
        "_digest",
        "_num_chars",
        "_row",
        "_texts",
        "_usage",
        "abort_sent",
        "accepted",
        "account",
        "early_abort",
        "failure",
        "finish",
        "index",
        "input_ids",
        "mismatched",
        "num_tokens",
        "obj",
        "phase",
        "released",
        "row_at",
        "shortcut",
        "slot",
    )

    def __init__(self, obj: GenerateReqInput, account: Account, slot: int = 0) -> None:
        self.obj = obj
        self.slot = slot  # what its rows call it; a rid may be in use again while rows of its last request are on their way
        self.account = account  # settled when it has ended and nobody waits for its rows
        self.index = 0  # among the requests of its call
        self.phase = Phase.CREATED
        self.abort_sent = False  # at most one AbortReq, in any phase after dispatch
        self.early_abort: AbortCause | None = None  # it was aborted before dispatch, and its call goes on
        self.accepted = False  # by the scheduler's verdict, or by a row: those come by another way and may be faster
        self.released = False  # nobody waits for rows any more
        self.row_at = 0.0  # when its last row came; 0.0 before the first
        self.input_ids: list[int] = obj.input_ids or []
        self.num_tokens = 0  # made so far, as far as their rows have come
        # takes text and ids of a row that ends nothing, as it comes, and wakes nobody; False, and not taken: it cannot now
        self.shortcut: Callable[[str, list[int]], bool] | None = None
        self.finish: FinishReason | None = None
        self.failure: Failure | None = None
        self.mismatched = False  # what was handed on is not what the ids say: a bug
        self._num_chars = 0  # of the text that has come
        self._usage: Usage | None = None
        self._digest = 0  # of what was handed on
        self._row: TextRow | None = None
        self._texts: list[str] = []  # of the rows that merge with `_row`, and their details: joined when it is taken
        self._details: list[RowDetails] = []

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
    def num_handed_on(self) -> int:
        """Tokens that the consumer has, or is given just now."""
        return self.num_tokens if self._row is None else self.num_tokens - len(self._row.token_ids)

    @property
    def usage(self) -> Usage | None:
        """The counts so far; None before the first row."""
        last = self._usage
        if last is None or last.completion_tokens == self.num_tokens:
            return last
        return Usage(last.prompt_tokens, self.num_tokens, last.cached_tokens, last.verify_steps, last.retractions)

    def hand_on(self, text: str, token_ids: list[int]) -> bool:
        """Give a row that ends nothing to the consumer by its shortcut; False, and nothing done: it has to wait for `take`."""
        if self.shortcut is None or self._row is not None:
            return False
        self.num_tokens += len(token_ids)  # before: what is written may tell it
        if not self.shortcut(text, token_ids):
            self.num_tokens -= len(token_ids)
            return False
        self._num_chars += len(text)
        self._digest = digest_of(text, self._digest)
        return True

    def push(self, row: TextRow) -> None:
        """Take a row from the detokenizer, in order. Takes over `row`."""
        if self.phase is Phase.DISPATCHED:
            self.move(Phase.RECEIVING)
        self.num_tokens += len(row.token_ids)
        self._num_chars += len(row.text)
        self._usage = row.usage or self._usage
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
        waiting.usage, waiting.finish, waiting.timing = self._usage, row.finish, row.timing
        waiting.digest = row.digest
        if row.details is not None:
            self._details.append(row.details)

    def take(self) -> TextRow | None:
        """Everything that came since the last call, as one row; None where nothing did."""
        row, self._row = self._row, None
        if row is None:
            return None
        if self._texts:
            row.text += "".join(self._texts)
            self._texts.clear()
        if self._details:
            row.details = joined((row.details, *self._details))
            self._details.clear()
        self._digest = digest_of(row.text, self._digest)
        if row.digest is not None:
            self.mismatched = row.digest != self._digest
        return row

    @property
    def received(self) -> Received:
        """How much has come of it, taken or not."""
        return Received(self.rid, self.num_tokens, self._num_chars)

    def adopt_timing(self, timing: Timing) -> None:
        """Take over the stamps of the other processes from the final row, and keep our own."""
        keep_own_stamps(timing, self.obj.timing)
        self.obj.timing = timing

    @property
    def num_embeds_bytes(self) -> int:
        """Bytes held of embeddings that came in place of the prompt's ids."""
        return 0 if self.obj.input_embeds is None else len(self.obj.input_embeds)

    def drop_embeds(self, cause: ReleaseCause) -> None:
        """Let go of the embeddings that came in place of the prompt's ids: the scheduler has them, or nobody needs them."""
        if self.obj.input_embeds is not None:
            self.obj.input_embeds = None
            self.account.release("input_embeds", cause)

    def drop_rows(self) -> None:
        """Nobody reads this request any more: forget what waits, and what comes."""
        self.released = True
        self.shortcut = None
        self._row = None
        self._texts.clear()
        self._details.clear()


def keep_own_stamps(timing: Timing, ours: Timing) -> None:
    """Put the entry's stamps, which are in `ours`, into what came back from the other processes."""
    timing.received, timing.adapted = ours.received, ours.adapted
    timing.tokenized, timing.checked = ours.tokenized, ours.checked
    timing.first_written = ours.first_written
    timing.lost, timing.replayed = ours.lost, ours.replayed
