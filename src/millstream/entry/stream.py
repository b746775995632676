"""A streamed answer: rows of a generation become events of a stream. Used by every streaming adapter.

An adapter says in a `StreamForm` what rows look like; when they are written, and how a stream ends, is decided here. A row
goes straight from the TokenizerManager to the connection, within the step that brought it, and wakes nobody. The coroutine
here sleeps through all that. It writes the beginning and the end, and whatever cannot be written at once: rows for a client
that does not read wait in their `ReqState`, where they merge. When those are many bytes the TokenizerManager has the scheduler
pause; the coroutine here ends the pause once the client has read on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, Protocol

from millstream.entry.failure import INTERNAL, Failure, RequestFailed
from millstream.entry.generation import Generation
from millstream.entry.http.exchange import ClientGone, Exchange
from millstream.entry.service import Service
from millstream.entry.sse import EventStream, progress_comment
from millstream.entry.state import ReqState
from millstream.messages import FinishReason, TextRow
from millstream.messages.finish import EndCause

log = logging.getLogger(__name__)


class StreamForm(Protocol):
    """What a stream's events look like in one API: facts in, bytes out."""

    def opening(self) -> bytes:
        """The events that are sent on admission."""
        ...

    def row(self, index: int, row: TextRow) -> bytes:
        """The events for a row of request `index`; may be none. It is the row of nobody else.

        What is returned is sent: a form may count it.
        """
        ...

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """What `row` puts around the JSON string of a text, where an event says no more and no text makes no event."""
        ...

    def failure(self, finish: FinishReason) -> Failure | None:
        """What `finish` means to the client where it is no success."""
        ...

    def closing(self) -> bytes:
        """The events after the last row of a call that succeeded: what ends the stream."""
        ...

    def broken(self, failure: Failure) -> bytes:
        """The events that end a stream whose call failed."""
        ...


async def stream_answer(exchange: Exchange, service: Service, generation: Generation, form: StreamForm) -> None:
    """Stream until every request of `generation` has ended, or one has failed."""

    def cut_off() -> None:
        generation.cut_off = "slow_reader"

    stream = EventStream(
        exchange,
        keep_alive_s=service.config.sse_keep_alive_s,
        write_timeout_s=service.config.write_timeout_s,
        on_idle=generation.ring,
        on_stuck=cut_off,
    )
    generation.unsent = stream.unsent_bytes
    account = generation.account
    account.acquire("stream", measure=lambda: generation.unread_bytes + stream.unsent_bytes())
    cause: EndCause | Literal["done"] = "client_gone"
    try:
        await stream.open(form.opening())
        failure = await _stream_rows(stream, generation, form, service.clock)
        if failure is None:
            await stream.close(form.closing())
            generation.stamp_written(service.clock(), last=True)
            cause = "done"
        else:
            await stream.close(form.broken(failure))
            cause = failure.cause
    except RequestFailed as error:
        await stream.close(form.broken(error.failure))
        cause = error.failure.cause
    except ClientGone:
        raise
    except Exception:
        log.exception("streaming the answer to %s failed", generation.rid)
        generation.is_broken = True
        cause = INTERNAL.cause
        await stream.close(form.broken(INTERNAL))
    finally:
        for state in generation.states:
            state.shortcut = None
        stream.stop()
        account.release("stream", generation.cut_off or cause)


async def _stream_rows(
    stream: EventStream, generation: Generation, form: StreamForm, clock: Callable[[], float]
) -> Failure | None:
    """Write what comes by the long way; from the first text on, all that can takes the short one."""
    num_open = len(generation.states)
    while num_open:
        events: list[bytes] = []
        failure = None
        for index, row in await generation.receive():
            events.append(form.row(index, row))
            if row.finish is not None:
                num_open -= 1
                failure = failure or form.failure(row.finish)
        if data := b"".join(events):
            await stream.write(data)
            generation.stamp_written(clock())
            for state in () if generation.taps else generation.states:
                state.shortcut = state.shortcut or _shortcut(stream, form, state)
        elif (progress := generation.take_progress()) is not None:
            await stream.write(progress_comment(progress))
        else:
            await stream.keep_alive()
        if failure is not None:
            return failure
        if generation.resume is not None:
            await stream.wait_taken()
            if not generation.unread_bytes:
                generation.resume()
    return None


def _shortcut(stream: EventStream, form: StreamForm, state: ReqState) -> Callable[[str, list[int]], bool]:
    """The short way of the rows of one request."""
    around = form.text_event(state.index)
    if around is not None:
        return stream.text_writer(*around)

    def write_at_once(text: str, token_ids: list[int]) -> bool:
        if not stream.is_free:
            return False
        events = form.row(state.index, TextRow(state.rid, state.slot, text, token_ids, None))
        return not events or stream.try_write(events)

    return write_at_once
