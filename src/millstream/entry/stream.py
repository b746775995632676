"""A streamed answer: rows of a generation become events of a stream. Used by every streaming adapter.

An adapter says in a `StreamForm` what rows look like; when they are written, and how a stream ends, is decided here. A row
goes straight from the TokenizerManager to the connection, within the step that brought it, and wakes nobody. The coroutine
here sleeps through all that. It writes the beginning and the end, and whatever cannot be written at once: rows for a client
that does not read wait in their `ReqState`, where they merge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from millstream.entry.failure import INTERNAL, Failure, RequestFailed
from millstream.entry.generation import Generation
from millstream.entry.http.exchange import ClientGone, Exchange
from millstream.entry.service import Service
from millstream.entry.sse import EventStream, progress_comment
from millstream.messages import FinishReason, TextRow

log = logging.getLogger(__name__)


class StreamForm(Protocol):
    """What a stream's events look like in one API: facts in, bytes out."""

    def opening(self) -> bytes:
        """The events that are sent on admission."""
        ...

    def row(self, index: int, row: TextRow) -> bytes:
        """The events for a row of request `index`; may be none."""
        ...

    def failure(self, finish: FinishReason) -> Failure | None:
        """What `finish` means to the client where it is no success."""
        ...

    def closing(self) -> bytes:
        """The events after the last row of a call that succeeded."""
        ...


async def stream_answer(exchange: Exchange, service: Service, generation: Generation, form: StreamForm) -> None:
    """Stream until every request of `generation` has ended, or one has failed."""
    stream = EventStream(
        exchange,
        keep_alive_s=service.config.sse_keep_alive_s,
        write_timeout_s=service.config.write_timeout_s,
        on_idle=generation.ring,
    )
    try:
        await stream.open(form.opening())
        failure = await _stream_rows(stream, generation, form, service.clock)
        if failure is not None:
            await stream.fail(failure)
            return
        await stream.close(form.closing())
        generation.stamp_written(service.clock(), last=True)
    except RequestFailed as error:
        await stream.fail(error.failure)
    except ClientGone:
        raise
    except Exception:
        log.exception("streaming the answer to %s failed", generation.rid)
        await stream.fail(INTERNAL)
    finally:
        generation.shortcut = None
        stream.stop()


async def _stream_rows(
    stream: EventStream, generation: Generation, form: StreamForm, clock: Callable[[], float]
) -> Failure | None:
    """Write what comes by the long way; from the first text on, all that can takes the short one."""

    def write_at_once(index: int, row: TextRow) -> bool:
        events = form.row(index, row)
        return not events or stream.try_write(events)

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
            generation.shortcut = write_at_once
        elif (progress := generation.take_progress()) is not None:
            await stream.write(progress_comment(progress))
        else:
            await stream.keep_alive()
        if failure is not None:
            return failure
    return None
