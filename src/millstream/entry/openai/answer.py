"""From protocol-free requests to an OpenAI answer, streamed or whole: one pipeline, the same deltas, joined or not.

Called by the chat and completions adapters. Status and headers are sent after admission, never before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from millstream.entry.failure import Failure, failure_of_abort
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.chunks import ChunkWriter, Shape, finish_members
from millstream.entry.openai.protocol import GenerationFields, StreamOptions
from millstream.entry.openai.tally import Tally
from millstream.entry.release import release_after
from millstream.entry.service import Service
from millstream.entry.sse import DONE, error_event
from millstream.entry.stream import stream_answer
from millstream.entry.whole import Whole, collect
from millstream.messages import Abort, FinishReason, GenerateReqInput, TextRow


@dataclass(frozen=True, kw_only=True)
class Call:
    """One OpenAI call, understood. `requests` holds `fields.n` neighbours for each prompt."""

    rid: str
    fields: GenerationFields
    requests: list[GenerateReqInput]
    origin: Origin
    shape: Shape
    several_prompts: bool = False

    @property
    def response_id(self) -> str:
        """The id in the answer and in every chunk of it."""
        return self.shape.id_prefix + self.rid


async def answer(exchange: Exchange, service: Service, call: Call) -> None:
    """Run `call` and answer it.

    Raises:
        MillstreamError, RequestFailed: before anything was sent.
    """
    manager = service.manager
    generation = await manager.generate_request(call.rid, call.requests, call.origin)
    with release_after(manager, generation):
        if call.fields.stream:
            await stream_answer(exchange, service, generation, _ChunkStream(call, generation))
        else:
            await _whole(exchange, service, call, generation)


class _Ends:
    """Says which ends of a call's choices are failures of the call: all but success, and but the abort of some choices.

    Asked once for each choice. A client that aborts one choice of several by its own rid has asked for nothing else to end.
    """

    def __init__(self, call: Call) -> None:
        self._several = len(call.requests) > 1
        self._num_wanted = len(call.requests)

    def failure(self, finish: FinishReason) -> Failure | None:
        """What the end of one choice means to the call, where it is a failure."""
        if not isinstance(finish, Abort):
            return None
        if finish.cause == "aborted":
            self._num_wanted -= 1
            if self._num_wanted:
                return None
        return failure_of_abort(finish)

    def is_shown(self, finish: FinishReason) -> bool:
        """Whether the choice has a `finish_reason`."""
        return not isinstance(finish, Abort) or (self._several and finish.cause == "aborted")


async def _whole(exchange: Exchange, service: Service, call: Call, generation: Generation) -> None:
    choices = await collect(generation, _Ends(call).failure)
    tally = Tally(generation, call.fields.n)
    body: dict[str, Any] = {
        "id": call.response_id,
        "object": call.shape.object,
        "created": int(time.time()),
        "model": call.origin.model,
        "choices": [_choice(call, index, choice) for index, choice in enumerate(choices)],
        "usage": tally.usage(),
    }
    if call.fields.return_token_ids:
        body["prompt_token_ids"] = tally.prompt_token_ids(several=call.several_prompts)
    await exchange.send_json(body)
    generation.stamp_written(service.clock(), last=True)


def _choice(call: Call, index: int, made: Whole) -> dict[str, Any]:
    chat = call.shape.opening is not None
    content: dict[str, Any] = {"message": {"role": "assistant", "content": made.text}} if chat else {"text": made.text}
    choice = {"index": index, **content, "logprobs": None, **finish_members(made.finish)}
    if call.fields.return_token_ids:
        choice["token_ids"] = made.token_ids
    return choice


class _ChunkStream:
    """The `StreamForm` of both OpenAI routes: opening chunk a choice, text as it comes, last chunk a choice, usage."""

    def __init__(self, call: Call, generation: Generation) -> None:
        options = call.fields.stream_options or StreamOptions()
        self._call = call
        self._ends = _Ends(call)
        self._ids = call.fields.return_token_ids
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        self._tally = Tally(generation, call.fields.n)
        self._chunks = ChunkWriter(
            shape=call.shape,
            response_id=call.response_id,
            created=int(time.time()),
            model=call.origin.model,
            choices=len(call.requests),
            usage_null=self._include_usage,
        )

    def opening(self) -> bytes:
        """The first chunk of each choice."""
        prompts = self._tally.prompt_token_ids(several=self._call.several_prompts) if self._ids else None
        return self._chunks.opening(len(self._call.requests), prompts)

    def row(self, index: int, row: TextRow) -> bytes:
        """A chunk for the text, and one for the end."""
        usage = self._tally.usage() if self._continuous else None
        ids = row.token_ids if self._ids else None
        chunk = self._chunks.text(index, row.text, ids, usage) if row.text or ids else b""
        if row.finish is None or not self._ends.is_shown(row.finish):
            return chunk
        return chunk + self._chunks.finish(index, row.finish, usage)

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """A chunk's fixed parts, where it carries neither ids nor usage."""
        return None if self._ids or self._continuous else self._chunks.around_text(index)

    def failure(self, finish: FinishReason) -> Failure | None:
        """See `_Ends`."""
        return self._ends.failure(finish)

    def closing(self) -> bytes:
        """The usage chunk, where it was asked for, and `[DONE]`."""
        return (self._chunks.usage(self._tally.usage()) if self._include_usage else b"") + DONE

    def broken(self, failure: Failure) -> bytes:
        """An error event."""
        return error_event(failure)
