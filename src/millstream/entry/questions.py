"""Questions: what one entry worker asks of the other processes, and the answers. Owned by the TokenizerManager.

An answer finds its question by a number. Questions go the way of requests, so an answer counts all that was sent before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from millstream.entry.failure import Failure
from millstream.errors import EngineDeadError
from millstream.ipc.channel import Sender
from millstream.messages import (
    AbortOthersReply,
    AbortOthersReq,
    FlushReply,
    FlushReq,
    JourneysReply,
    JourneysReq,
    LedgerQuery,
    LiveRequest,
    RadixReply,
    RadixReq,
    RequestRecord,
    RequestsReply,
    RequestsReq,
    ResponseRecord,
    ResponseReply,
    ResponseReq,
    StatsReply,
    StatsReq,
    WorkerReply,
    WorkerReport,
    WorkerReq,
)
from millstream.messages.workers import ResponseAction

ANSWER_TIMEOUT_S = 5.0
WORKER_TIMEOUT_S = 2.0
Answer = StatsReply | AbortOthersReply | FlushReply | RadixReply | WorkerReply | ResponseReply | RequestsReply | JourneysReply
ANSWERS: tuple[type, ...] = get_args(Answer)


class Questions:
    """The questions of entry worker `entry` that wait for their answers."""

    def __init__(self, *, to_scheduler: Sender, entry: int) -> None:
        self._to_scheduler = to_scheduler
        self._entry = entry
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._num_asked = 0

    async def stats(
        self, timeout_s: float = ANSWER_TIMEOUT_S, *, ledger: LedgerQuery | None = None, metrics: bool = False
    ) -> StatsReply:
        """Ask scheduler and detokenizer for their counts, in order with the data they count; with `ledger`, for their books,
        with `metrics` for their measures.

        Raises:
            EngineDeadError: no answer within `timeout_s` seconds, or one of them is gone.
        """
        ask = partial(StatsReq, ledger=ledger, entry=self._entry, metrics=metrics)
        reply: StatsReply = await self._ask(self._to_scheduler, ask, timeout_s)
        return reply

    async def abort_others(self, rids: Sequence[str] = (), prefix: str | None = None) -> list[str]:
        """Abort requests of other entry workers that were dispatched: those with exactly one of these rids or of a call with
        one of them, and those whose rid begins with `prefix`, if given. Returns the rids that were live.

        Raises:
            EngineDeadError: the scheduler does not answer.
        """
        ask = partial(AbortOthersReq, entry=self._entry, rids=list(rids), prefix=prefix)
        reply: AbortOthersReply = await self._ask(self._to_scheduler, ask, ANSWER_TIMEOUT_S)
        return reply.rids

    async def flush(self) -> FlushReply:
        """Have the scheduler forget the prefixes it keeps, unless requests are live.

        Raises:
            EngineDeadError: the scheduler does not answer.
        """
        reply: FlushReply = await self._ask(self._to_scheduler, partial(FlushReq, entry=self._entry), ANSWER_TIMEOUT_S)
        return reply

    async def radix(self, max_nodes: int) -> RadixReply:
        """Ask the scheduler for its prefix tree: the `max_nodes` nodes that were used last.

        Raises:
            EngineDeadError: the scheduler does not answer.
        """
        ask = partial(RadixReq, entry=self._entry, max_nodes=max_nodes)
        reply: RadixReply = await self._ask(self._to_scheduler, ask, ANSWER_TIMEOUT_S)
        return reply

    async def worker(self, to_worker: Sender, ledger: LedgerQuery | None = None, *, metrics: bool = False) -> WorkerReport:
        """Ask another entry worker how it is.

        Raises:
            EngineDeadError: it does not answer.
        """
        ask = partial(WorkerReq, entry=self._entry, ledger=ledger, metrics=metrics)
        reply: WorkerReply = await self._ask(to_worker, ask, WORKER_TIMEOUT_S)
        return reply.report

    async def response(self, to_worker: Sender, response_id: str, owner: str, action: ResponseAction) -> ResponseRecord | None:
        """Have another entry worker do something with a response that it keeps; returns the response, if it has it.

        Raises:
            EngineDeadError: it does not answer.
        """
        ask = partial(ResponseReq, entry=self._entry, response_id=response_id, owner=owner, action=action)
        reply: ResponseReply = await self._ask(to_worker, ask, WORKER_TIMEOUT_S)
        return reply.record

    async def requests(self, to_worker: Sender, owner: str | None, name: str) -> list[RequestRecord]:
        """Ask another entry worker for its requests: those of `owner`, or of all, and with `name` those that go by it.

        Raises:
            EngineDeadError: it does not answer.
        """
        ask = partial(RequestsReq, entry=self._entry, owner=owner, name=name)
        reply: RequestsReply = await self._ask(to_worker, ask, WORKER_TIMEOUT_S)
        return reply.records

    async def journeys(self) -> dict[str, LiveRequest]:
        """How far the live requests of all workers are, by rid, as the scheduler sees them.

        Raises:
            EngineDeadError: the scheduler does not answer.
        """
        reply: JourneysReply = await self._ask(self._to_scheduler, partial(JourneysReq, entry=self._entry), ANSWER_TIMEOUT_S)
        return {request.rid: request for request in reply.requests}

    def answer(self, message: Answer) -> None:
        """Take an answer. One that nobody waits for any more is dropped."""
        future = self._waiting.pop(message.id, None)
        if future is not None and not future.done():
            future.set_result(message)

    def fail(self, failure: Failure) -> None:
        """A process is gone, and with it the answers that are under way."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineDeadError(failure.message, code=failure.code))

    async def _ask(self, to: Sender, question: Callable[[int], Any], timeout_s: float) -> Any:
        """Send what `question` makes of a number, and wait for the message that bears the number."""
        self._num_asked += 1
        number = self._num_asked
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            if to.send(question(number)) == 0:
                raise EngineDeadError("Nobody is there to answer.")
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise EngineDeadError(f"The engine did not answer within {timeout_s:g} s.") from None
        finally:
            self._waiting.pop(number, None)
