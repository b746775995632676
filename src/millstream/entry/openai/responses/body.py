"""The response object, in OpenAI's shape, at each stage of a response's life. Pure: facts in, JSON out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from millstream.entry.failure import Failure
from millstream.entry.fields import Json
from millstream.entry.generation import Generation
from millstream.entry.openai.responses.items import Item
from millstream.entry.openai.responses.protocol import ResponseRequest
from millstream.entry.openai.responses.wish import listed_tools
from millstream.messages import Abort, FinishReason, Length


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is known of a response before anything is made of it. `items`: the conversation that it answers, as JSON."""

    id: str
    request: ResponseRequest
    model: str
    items: bytes
    created_at: int = field(default_factory=lambda: int(time.time()))

    def body(self, status: str, **facts: Any) -> Json:
        """The object with this status. `facts` are members that are not what they are at the beginning."""
        request = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": request.background,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": (request.prompt_cache_retention or "").replace("-", "_") or None,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "temperature": request.temperature,
            "text": {"format": request.text.get("format") or {"type": "text"}, "verbosity": "medium"},
            "tool_choice": request.tool_choice,
            "tools": listed_tools(request.tools),
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": request.user,
            "metadata": request.metadata,
            **facts,
        }

    def ended(self, end: FinishReason | Failure, output: list[Item], usage: Json | None) -> Json:
        """The object of a response that has ended so, with all that was made."""
        if isinstance(end, Failure):
            error = {"code": "server_error", "message": end.message}
            return self.body("failed", error=error, output=output, usage=usage)
        if isinstance(end, Abort):
            return self.body("cancelled", output=output, usage=usage)
        if isinstance(end, Length):
            details = {"reason": "max_output_tokens"}
            return self.body("incomplete", incomplete_details=details, output=output, usage=usage)
        return self.body("completed", completed_at=int(time.time()), output=output, usage=usage)


def usage_of(generation: Generation, reasoning_tokens: int) -> Json | None:
    """What the one request of `generation` has used; None where it made nothing. So many of its tokens are reasoning.

    Nothing is written to the prefix cache for a request's sake, it remembers what was computed.
    """
    (state,) = generation.states
    usage = state.usage
    if usage is None:
        return None
    prompt, made = len(state.input_ids), state.num_handed_on
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt + made,
    }
