"""Job: one response from admission to its end, whoever waits for it: a stream, a plain answer, or nobody (background).

Made by the route that creates responses. It has one end: an answer, which the store then has before its client sees it, or
nothing, where the client left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from millstream.entry.failure import Failure
from millstream.entry.fields import Json
from millstream.entry.generation import Generation
from millstream.entry.openai.responses.body import Draft, Output, usage_of
from millstream.entry.openai.responses.store import Live, ResponseStore
from millstream.entry.openai.responses.tokens import TokenList
from millstream.entry.release import release_after
from millstream.entry.state import Phase
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.entry.whole import Whole, num_values
from millstream.messages import FinishReason, ResponseRecord


class Job:
    """One response that is being made, owned by the API key with digest `owner`."""

    def __init__(
        self,
        draft: Draft,
        generation: Generation,
        tokens: TokenList,
        *,
        owner: str,
        store: ResponseStore,
        manager: TokenizerManager,
    ) -> None:
        self.draft = draft
        self.generation = generation
        self.tokens = tokens
        self._owner = owner
        self._store = store
        self._manager = manager
        self._body: Json | None = None  # once it has ended

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the making of the answer: whatever becomes of it, nothing of the response is left running."""
        live = Live(self._owner, self._look, self._stop, is_kept=self.draft.request.store)
        self._store.begin(self.draft.id, live)
        try:
            with release_after(self._manager, self.generation):
                yield
        finally:
            if self._body is None:
                self._store.end(self.draft.id, None)

    def end(self, end: FinishReason | Failure, made: Output) -> Json:
        """The response has ended, with this in all. Returns the object; the same, when it had ended before."""
        if self._body is None:
            self._body = self.draft.ended(end, made, usage_of(self.generation))
            self._store.end(self.draft.id, self._record(self._body))
        return self._body

    async def end_whole(self, whole: Whole) -> Json:
        """The response has ended, and this is all of it."""
        work = partial(self.tokens.take, whole.text, whole.token_ids, whole.details, whole.finish)
        listed = await self._manager.prompts.off_loop(num_values([whole]), work)
        return self.end(whole.finish, Output(whole.text, listed))

    def now(self) -> Json:
        """The object as it is now. Its output comes when it ends."""
        (state,) = self.generation.states
        return self._body or self.draft.body("queued" if state.phase is Phase.DISPATCHED else "in_progress")

    def _look(self) -> ResponseRecord:
        return self._record(self.now())

    def _record(self, body: Json) -> ResponseRecord:
        return ResponseRecord(self._owner, body["status"], msgspec.json.encode(body), self.draft.items)

    def _stop(self) -> None:
        for state in self.generation.states:
            self._manager.endings.abort(state, self.generation, "aborted")
