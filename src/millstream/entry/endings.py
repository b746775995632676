"""Endings: leads the requests of an entry worker to their ends, one each. Owned by the TokenizerManager.

An end is asked of the scheduler, once (`AbortReq`), and comes as the final row. Where none will come, because the scheduler has
not seen the request, or cannot come in time, it is made here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.config import LogRequests
from millstream.entry.due_ends import DueEnds
from millstream.entry.ending import describe_end, record_of, texts_of
from millstream.entry.failure import INTERNAL, Failure, RequestFailed, failure_of_cause, failure_of_error
from millstream.entry.generation import Generation
from millstream.entry.recent import Recent
from millstream.entry.registry import Live, Registry
from millstream.entry.state import Phase, ReqState
from millstream.errors import DeadlineExceeded, MillstreamError
from millstream.ipc.channel import Sender
from millstream.messages import Abort, AbortReq, Delivered, TextRow, Usage
from millstream.messages.finish import AbortCause
from millstream.observe.log import log_request_end
from millstream.observe.recorder import Recorder

log = logging.getLogger(__name__)


class Endings:
    """The way out of `registry` for every request."""

    def __init__(
        self,
        *,
        registry: Registry,
        to_scheduler: Sender,
        entry: int,
        recorder: Recorder,
        log_requests: LogRequests,
        clock: Callable[[], float],
        grace_s: float,
        recent: Recent,
    ) -> None:
        self.stream_mismatches = 0  # requests whose text was not what their ids say; anything but 0 is a bug
        self.due = DueEnds(self.make, grace_s=grace_s)
        self.unread: dict[int, Live] = {}  # by slot: those that have ended, and whose answers somebody still takes
        self._registry = registry
        self._to_scheduler = to_scheduler
        self._entry = entry
        self._recorder = recorder
        self._log_requests = log_requests
        self._clock = clock
        self._recent = recent

    def abort(self, state: ReqState, generation: Generation, cause: AbortCause, failure: Failure | None = None) -> None:
        """Lead one live request to its end: here, by `failure`, where the scheduler never saw it, else through that.

        One of several whose call is still being prepared ends once they are sent, for its end is a row like any other's.
        """
        if state.dispatched:
            self.ask(state, cause)
        elif state.phase is Phase.CREATED:
            state.early_abort = cause
            if state.released:
                self.fail(state, generation, failure or failure_of_cause(cause))
            elif all(each.early_abort is not None for each in generation.states):
                for each in generation.states:
                    self.fail(each, generation, failure_of_cause(cause))

    def ask(self, state: ReqState, cause: AbortCause) -> None:
        """Ask the scheduler to end a request, unless it was asked before."""
        if state.dispatched and not state.abort_sent:
            self._to_scheduler.send(AbortReq(rid=state.rid, cause=cause))
            self.was_asked(state, cause)

    def was_asked(self, state: ReqState, cause: AbortCause) -> None:
        """The scheduler was asked to end the request, by whomever."""
        state.abort_sent = True
        if not state.released:
            self.due.expect(state.slot, cause)

    def expect_deadline(self, state: ReqState) -> None:
        """See to it that a dispatched request ends by its deadline, if it has one; the scheduler does, where all is well."""
        if state.obj.deadline is not None:
            self.due.expect(state.slot, "deadline", state.obj.deadline - self._clock())

    def make(self, slot: int, cause: AbortCause) -> None:
        """End a request whose end is due and has not come: as its final row would, where it was admitted."""
        state, generation = self._registry.by_slot[slot]
        log.warning("the end of %s (%s) did not come in time", state.rid, cause)
        self.ask(state, cause)
        self.confirm([state.rid])  # nobody waits for the final row any more
        deadline = state.obj.deadline if cause == "deadline" else None
        message = None if deadline is None else DeadlineExceeded(deadline - state.obj.timing.received).message
        failure = failure_of_cause(cause, message)
        if not state.accepted:
            self.fail(state, generation, failure)
            return
        usage = state.usage or Usage(len(state.input_ids), 0)
        state.push(TextRow(state.rid, slot, "", [], usage, Abort(cause, failure.message, failure.status)))
        generation.ring()
        self.close(state, generation)

    def confirm(self, rids: list[str]) -> None:
        """Tell the scheduler that it need not keep these for a replay."""
        self._to_scheduler.send(Delivered(rids, self._entry))

    def fail(self, state: ReqState, generation: Generation, failure: Failure) -> None:
        """End a request that gets no final row."""
        state.end(failure)
        generation.interrupt()
        self.close(state, generation)

    def fail_row(self, row: TextRow) -> None:
        """End the request of a row that we could not deliver."""
        if (live := self._registry.by_slot.get(row.slot)) is None:
            return
        state, generation = live
        if row.finish is None and state.dispatched:
            self.ask(state, "engine_error")
            generation.fail(state, INTERNAL)
        elif state.phase is not Phase.FINISHED:
            self.fail(state, generation, INTERNAL)
        else:
            self.close(state, generation)

    def close(self, state: ReqState, generation: Generation) -> None:
        """Let go of a request that has ended. Its line in the log follows when nobody reads its answer any more."""
        self.due.forget(state.slot)
        self._registry.remove(state, generation)
        if state.released:
            self.settle(state, generation)
        else:
            self.unread[state.slot] = state, generation

    def settle(self, state: ReqState, generation: Generation) -> None:
        """A request has ended and nobody reads its answer any more: the last that is done about it."""
        self.unread.pop(state.slot, None)
        if state.mismatched:
            self.stream_mismatches += 1
            log.error("the text of request %s is not the text of its tokens: this is a bug, please report it", state.rid)
        origin, now = generation.origin, self._clock()
        if self._recent.is_on and not origin.is_probe:
            self._recent.add(record_of(state, generation, now))
        end = describe_end(state, origin, now)
        if origin.is_probe:
            log_request_end(end, logging.DEBUG)
        else:
            self._recorder.record(end)
            if self._log_requests != "none":
                log_request_end(end, texts=texts_of(state, generation))
        state.account.settle(state.cause)


def end_for(error: BaseException) -> tuple[AbortCause, Failure | None]:
    """How requests end that `error` kept from being admitted: those that were sent, and those that were not."""
    if isinstance(error, asyncio.CancelledError):
        return "client_gone", None
    if isinstance(error, MillstreamError):
        return "aborted", failure_of_error(error)
    return ("aborted" if isinstance(error, RequestFailed) else "engine_error"), None
