"""Job: one response from admission to its end, whoever waits for it: a stream, a plain answer, or nobody (background).

Made by the route that creates responses. It has one end: an answer, which the store then has before its client sees it, or
nothing, where the client left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from millstream.entry.failure import Failure
from millstream.entry.fields import Json
from millstream.entry.generation import Generation
from millstream.entry.openai.responses.body import Draft, usage_of
from millstream.entry.openai.responses.output import Output
from millstream.entry.openai.responses.store import Live, ResponseStore
from millstream.entry.openai.responses.tokens import TokenList
from millstream.entry.release import release_after
from millstream.entry.state import Phase
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.entry.whole import Whole, num_values
from millstream.messages import FinishReason, Length, ResponseRecord, Stop


class Job:
    """One response that is being made, owned by the API key with digest `owner`."""

    def __init__(
        self,
        draft: Draft,
        generation: Generation,
        output: Output,
        tokens: TokenList,
        *,
        owner: str,
        store: ResponseStore,
        manager: TokenizerManager,
    ) -> None:
        self.draft = draft
        self.generation = generation
        self.output = output
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

    def end(self, end: FinishReason | Failure) -> Json:
        """The response has ended, with what `output` has. Returns the object; the same, when it had ended before."""
        if self._body is None:
            self.close(end)
            self._body = self.draft.ended(end, self.output.items, usage_of(self.generation, self.output.thought.tokens))
            self._store.end(self.draft.id, self._record(self._body))
        return self._body

    def close(self, end: FinishReason | Failure) -> list[Json]:
        """Nothing more comes to the output of a response that ends so; the last events of it."""
        return self.output.close(is_complete=isinstance(end, Stop), is_cut=not isinstance(end, Stop | Length))

    async def end_whole(self, whole: Whole) -> Json:
        """The response has ended, and this is all of it."""

        def read() -> None:
            listed = self.tokens.take(whole.text, whole.token_ids, whole.details, whole.finish)
            self.output.thought.take(whole.token_ids)
            self.output.take(whole.text, listed, is_last=True)

        size = num_values([whole]) + (0 if self.output.is_plain else len(whole.text))
        await self._manager.prompts.off_loop(size, read)
        return self.end(whole.finish)

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
