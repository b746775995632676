"""What is known of a request, for its line in the log at its end and for its record. Called by the TokenizerManager, once a
request, and for live ones whenever somebody looks.
"""

from __future__ import annotations

import time

from millstream.entry.generation import Generation, Origin
from millstream.entry.kept_text import MAX_CHARS
from millstream.entry.state import Phase, ReqState
from millstream.messages import RequestRecord, Usage
from millstream.messages.requests import RequestState
from millstream.observe.log import RequestEnd

_STATES: dict[Phase, RequestState] = {
    Phase.CREATED: "received",
    Phase.DISPATCHED: "queued",
    Phase.RECEIVING: "running",
    Phase.FINISHED: "ended",
}


def describe_end(state: ReqState, origin: Origin, now: float) -> RequestEnd:
    """The facts of a request that ended at `now`, by the clock of its timing."""
    usage = state.usage or Usage(prompt_tokens=len(state.input_ids), completion_tokens=0)
    return RequestEnd(
        rid=state.rid,
        api=origin.api,
        model=origin.model,
        cause=state.cause,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        timing=state.obj.timing,
        ended=now,
        request_id=origin.request_id,
        trace_id=None if origin.caller is None else origin.caller.trace.trace_id,
    )


def record_of(state: ReqState, generation: Generation, now: float) -> RequestRecord:
    """What is known of a request at `now`, by the clock of its timing."""
    origin, timing = generation.origin, state.obj.timing
    caller = origin.caller
    return RequestRecord(
        rid=state.rid,
        call=generation.rid,
        api=origin.api,
        model=origin.model,
        state="writing" if state.phase is Phase.FINISHED and not state.released else _STATES[state.phase],
        received_at=time.time() - (now - timing.received),
        until=timing.written or now,
        timing=timing,
        usage=state.usage or Usage(len(state.input_ids), 0),
        cause=state.cause if state.phase is Phase.FINISHED else None,
        request_id="" if caller is None else caller.request_id,
        owner="" if caller is None else caller.owner,
        trace=None if caller is None else caller.trace,
    )


def texts_of(state: ReqState, generation: Generation) -> tuple[str, str] | None:
    """The beginnings of prompt and answer; None where the log is not to have them."""
    if generation.kept_text is None:
        return None
    prompt = str(state.input_ids[:MAX_CHARS]) if state.obj.text is None else state.obj.text
    return prompt[:MAX_CHARS], generation.kept_text.text(state.index)
