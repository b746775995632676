"""TokenizerManager: entry-side request coordinator, owner of rid -> ReqState.

Adapters call `generate_request`, consume the `Generation` it returns, and always `release` it. The process feeds `handle`
with what the scheduler and the detokenizer send. Everything runs on one event loop; it knows no HTTP and no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from millstream.entry.ending import describe_end
from millstream.entry.failure import INTERNAL, Failure, RequestFailed, failure_of_cause, failure_of_error, failure_of_rejection
from millstream.entry.generation import Generation, Origin
from millstream.entry.questions import Questions
from millstream.entry.state import Phase, ReqState
from millstream.entry.tokenize import PromptEncoder, check_prompt, finalize
from millstream.errors import DuplicateRid, MillstreamError
from millstream.ipc.channel import Sender
from millstream.messages import (
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    Delivered,
    EngineInfo,
    GenerateReqInput,
    ReplayReq,
    TextRow,
    ToEntry,
    TokenizedGenerateReqInput,
)
from millstream.messages.finish import AbortCause
from millstream.observe.log import log_request_end
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class TokenizerManager:
    """Registers, tokenises and dispatches requests; hands their rows to whoever waits; aborts what nobody waits for."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        to_scheduler: Sender,
        engine: EngineInfo,
        entry: int = 0,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.prompts = PromptEncoder(tokenizer, engine.context_length)
        self.questions = Questions(to_scheduler=to_scheduler, entry=entry)
        self.late_rows_dropped = 0
        self.stream_mismatches = 0  # requests whose text was not what their ids say; anything but 0 is a bug
        self._to_scheduler = to_scheduler
        self._entry = entry  # the number of this worker
        self._clock = clock
        self._new_seed = new_seed
        self._owners: dict[str, tuple[ReqState, Generation]] = {}
        self._generations: dict[str, Generation] = {}  # by the call's own rid, which may have none of its own
        self._verdicts_due: set[str] = set()  # rids whose final row came before the scheduler's verdict on them
        self._delivered: list[str] = []  # rids whose final row came, and the scheduler has not been told
        self._idle = asyncio.Event()  # set whenever the last live request ends

    async def generate_request(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        """Register, tokenise, check and dispatch all requests of one call, and wait until every one is admitted.

        All or none: when one fails, the others are aborted. The caller must `release` the generation it gets.

        Raises:
            RequestError: a request is wrong; nothing was dispatched. DuplicateRid, ContextLengthExceeded are of this kind.
            RequestFailed: the scheduler refused one, or the call was ended meanwhile.
        """
        generation = self._register(rid, requests, origin)
        try:
            for state, tokenized in zip(generation.states, await self._tokenize(generation), strict=True):
                self._to_scheduler.send(tokenized)
                state.move(Phase.DISPATCHED)  # after the send: it says that the scheduler may hold something
            while not all(state.accepted for state in generation.states):
                await generation.wait()
        except BaseException as error:
            cause: AbortCause = "client_gone" if isinstance(error, asyncio.CancelledError) else "aborted"
            self.release(generation, cause, failure_of_error(error) if isinstance(error, MillstreamError) else None)
            raise
        generation.ring()  # rows may have come with the verdicts
        return generation

    def release(self, generation: Generation, cause: AbortCause = "client_gone", failure: Failure | None = None) -> None:
        """Nobody waits for `generation` any more: abort what still runs, and log what has ended.

        `failure` is why, where the scheduler has not seen the request and only the log hears of it.
        """
        for state in generation.states:
            already, state.released = state.released, True
            state.drop_rows()
            if state.phase is Phase.FINISHED:
                if not already:
                    self._log_end(state, generation)
            else:
                self._abort(state, generation, cause, failure)

    def abort(self, rid: str, cause: AbortCause = "aborted") -> list[str]:
        """Abort the request or the whole call with exactly this rid; returns the rids that were live."""
        generation = self._generations.get(rid)
        if generation is not None:
            pairs = [(state, generation) for state in generation.states if state.phase is not Phase.FINISHED]
        else:
            pairs = [self._owners[rid]] if rid in self._owners else []
        for state, owner in pairs:
            self._abort(state, owner, cause)
        return [state.rid for state, _ in pairs]

    def abort_all(self, cause: AbortCause = "aborted") -> list[str]:
        """Abort every live request; returns their rids."""
        pairs = list(self._owners.values())
        for state, generation in pairs:
            self._abort(state, generation, cause)
        return [state.rid for state, _ in pairs]

    def fail_all(self, failure: Failure) -> None:
        """End every request at once: the scheduler is gone, or does not answer, and their final rows will never come."""
        for state, generation in list(self._owners.values()):
            self._end(state, generation, failure)
        self._verdicts_due.clear()
        self.questions.fail(failure)

    def ask_replay(self, pid: int) -> None:
        """The detokenizer was replaced by `pid`, and all that the old one sent was handled: have the new one go on there."""
        received = [state.received for state, _ in self._owners.values() if state.dispatched]
        if received:
            self._to_scheduler.send(ReplayReq(received, pid, self._entry))

    def handle(self, message: ToEntry) -> None:
        """Take one message from the scheduler or the detokenizer."""
        if isinstance(message, BatchStrOutput):
            for row in message.rows:
                try:
                    self._take_row(row)
                except Exception:  # a fault with one row belongs to its request: the others of the step are not touched
                    log.exception("a row of %s could not be delivered", row.rid)
                    self._fail(row.rid)
            if self._delivered:
                self._to_scheduler.send(Delivered(self._delivered, self._entry))
                self._delivered = []
        elif isinstance(message, AdmissionOutput):
            self._take_verdicts(message)
        else:
            self.questions.answer(message)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is live, for at most `timeout_s` seconds; returns whether none is."""
        if self._owners and timeout_s > 0:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
        return not self._owners

    @property
    def live_requests(self) -> int:
        """Requests whose final row has not come."""
        return len(self._owners)

    def close(self) -> None:
        """Stop the worker threads."""
        self.prompts.close()

    def _register(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        for key in {rid, *(request.rid for request in requests)}:
            if key in self._owners or key in self._generations:
                raise DuplicateRid(key)
        for request in requests:
            request.sampling.verify(self.engine.vocab_size)
        generation = Generation(rid, [ReqState(request) for request in requests], origin)
        self._generations[rid] = generation
        for state in generation.states:
            self._owners[state.rid] = (state, generation)
        return generation

    async def _tokenize(self, generation: Generation) -> list[TokenizedGenerateReqInput]:
        """Give every request its ids and its final form, all checked before one is sent. Equal texts are encoded once."""
        known: dict[tuple[str, bool], list[int]] = {}
        param = generation.origin.prompt_param
        for state in generation.states:
            obj = state.obj
            if obj.text is not None:
                key = (obj.text, obj.add_special_tokens)
                if key not in known:
                    known[key] = await self.prompts.encode(obj.text, add_special_tokens=obj.add_special_tokens, param=param)
                state.input_ids = known[key]
            is_ours = obj.text is not None and self.tokenizer.vocab_size <= self.engine.vocab_size
            check_prompt(state.input_ids, self.engine, param, is_ours=is_ours)
            obj.timing.tokenized = self._clock()
        for state in generation.states:
            if state.failure is not None:  # ended while it was being tokenised
                raise RequestFailed(state.failure)
            if state.obj.sampling.seed is None:
                state.obj.sampling = msgspec.structs.replace(state.obj.sampling, seed=self._new_seed())
        call = generation.rid if len(generation.states) > 1 else ""
        return [
            finalize(state.obj, state.input_ids, self.engine, generation.origin, entry=self._entry, call=call)
            for state in generation.states
        ]

    def _take_verdicts(self, verdicts: AdmissionOutput) -> None:
        for rid in verdicts.accepted:
            if rid in self._verdicts_due:  # of an earlier request: the rid may be in use again
                self._verdicts_due.discard(rid)
            elif (owned := self._owners.get(rid)) is not None:
                owned[0].accepted = owned[0].has_verdict = True
                owned[1].ring()
        for rejection in verdicts.rejected:
            if (owned := self._owners.get(rejection.rid)) is not None:
                self._end(*owned, failure_of_rejection(rejection))

    def _take_row(self, row: TextRow) -> None:
        owned = self._owners.get(row.rid)
        if owned is None:
            self.late_rows_dropped += 1
            if row.finish is not None:
                self._delivered.append(row.rid)
            return
        state, generation = owned
        if row.finish is None and generation.take_shortcut(state, row):
            return
        state.accepted = True
        if row.timing is not None:
            state.adopt_timing(row.timing)
        elif row.finish is not None:
            self._send_abort(state, "engine_error")  # the detokenizer has ended it, and the scheduler does not know
        state.push(row)
        if state.phase is Phase.FINISHED:
            if not state.has_verdict:
                self._verdicts_due.add(state.rid)
            self._delivered.append(state.rid)
            self._remove(state, generation)
        generation.ring()

    def _abort(self, state: ReqState, generation: Generation, cause: AbortCause, failure: Failure | None = None) -> None:
        """Lead one live request to its end: locally where the scheduler never saw it, else through the scheduler."""
        if state.dispatched:
            self._send_abort(state, cause)
        elif state.phase is Phase.CREATED:
            self._end(state, generation, failure or failure_of_cause(cause))

    def _send_abort(self, state: ReqState, cause: AbortCause) -> None:
        if state.dispatched and not state.abort_sent:
            state.abort_sent = True
            self._to_scheduler.send(AbortReq(rid=state.rid, cause=cause))

    def _fail(self, rid: str) -> None:
        """End a request by a fault of our own."""
        if (owned := self._owners.get(rid)) is not None:
            self._send_abort(owned[0], "engine_error")
            self._delivered.append(rid)
            self._end(*owned, INTERNAL)

    def _end(self, state: ReqState, generation: Generation, failure: Failure) -> None:
        """End a request that gets no final row."""
        generation.fail(state, failure)
        self._remove(state, generation)

    def _remove(self, state: ReqState, generation: Generation) -> None:
        del self._owners[state.rid]
        if not self._owners:
            self._idle.set()
        if generation.finished:
            self._generations.pop(generation.rid, None)
        if state.released:
            self._log_end(state, generation)

    def _log_end(self, state: ReqState, generation: Generation) -> None:
        if state.mismatched:
            self.stream_mismatches += 1
            log.error("the text of request %s is not the text of its tokens: this is a bug, please report it", state.rid)
        log_request_end(describe_end(state, generation.origin, self._clock()))
