"""What is known of a request when it has ended, for its line in the log. Called by the TokenizerManager, once a request."""

from __future__ import annotations

from millstream.entry.generation import Origin
from millstream.entry.state import ReqState
from millstream.messages import Usage
from millstream.observe.log import RequestEnd


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
    )
