"""From one protocol-free request to a message, streamed or whole: the same deltas, joined or not.

Called by the messages adapter. Status and headers are sent after admission, never before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from millstream.entry.anthropic import events
from millstream.entry.anthropic.content import Content
from millstream.entry.anthropic.errors import PING, error_object
from millstream.entry.failure import Failure, failure_of_end
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.release import admitted
from millstream.entry.service import Service
from millstream.entry.sse import named_event
from millstream.entry.stream import stream_answer
from millstream.entry.turn import Answer
from millstream.entry.whole import collect
from millstream.messages import FinishReason, GenerateReqInput, TextRow, Usage


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of /v1/messages, understood."""

    request: GenerateReqInput
    origin: Origin
    max_tokens: int
    stream: bool
    said: Answer  # how the text is taken apart; without a reading it is one block
    shows_thinking: bool = True

    def content(self, service: Service) -> Content | None:
        """Reads the answer; None where it is one block."""
        if self.said.reading is None:
            return None
        return Content(self.said, service.text.tokenizer.single, shows_thinking=self.shows_thinking)

    @property
    def message_id(self) -> str:
        """The id of the answer."""
        return f"msg_{self.request.rid}"


async def answer(exchange: Exchange, service: Service, call: Call) -> None:
    """Run `call` and answer it.

    Raises:
        MillstreamError, RequestFailed: before anything was sent.
    """
    async with admitted(service.manager, call.request.rid, [call.request], call.origin) as generation:
        if call.stream:
            form = _MessageStream(call, generation, exchange.request_id, call.content(service))
            await stream_answer(exchange, service, generation, form)
        else:
            await _whole(exchange, service, call, generation)


async def _whole(exchange: Exchange, service: Service, call: Call, generation: Generation) -> None:
    (made,) = await collect(generation, failure_of_end)
    content, blocks = call.content(service), [events.text_block(made.text)]
    if content is not None:
        content.thought.take(made.token_ids)
        blocks = await service.manager.prompts.off_loop(len(made.text), partial(content.blocks, made.text))
    in_calls = content is not None and content.ends_in_calls
    stop = events.stop_members(made.finish, call.max_tokens, in_calls=in_calls)
    usage = events.usage_members(_usage(generation), _thinking_tokens(content))
    await exchange.send_json(events.message(call.message_id, call.origin.model, blocks, stop, usage))
    generation.stamp_written(service.clock(), last=True)


class _MessageStream:
    """The `StreamForm` of /v1/messages: one message, as it comes: of one text block, or of those that it is read as."""

    def __init__(self, call: Call, generation: Generation, request_id: str, content: Content | None) -> None:
        self._call = call
        self._generation = generation
        self._request_id = request_id
        self._finish: FinishReason | None = None
        self._content = content

    def opening(self) -> bytes:
        """`message_start`, which counts the prompt as if nothing of it were cached: that is known later. Then a block, where it
        is the only one."""
        stop = events.stop_members(None, self._call.max_tokens)
        usage = events.usage_members(Usage(_num_prompt(self._generation), 0))
        start = events.message(self._call.message_id, self._call.origin.model, [], stop, usage)
        block = events.event("content_block_start", index=0, content_block=events.text_block(""))
        return b"".join((events.event("message_start", message=start), block if self._content is None else b"", PING))

    def row(self, index: int, row: TextRow) -> bytes:
        """Deltas for the text. The end is said by `closing`."""
        self._finish = row.finish or self._finish
        if self._content is not None:
            self._content.thought.take(row.token_ids)
            found = self._content.events(row.text, is_last=row.finish is not None)
            return b"".join([events.event(**event) for event in found])
        before, after = events.AROUND_TEXT
        return before + msgspec.json.encode(row.text) + after if row.text else b""

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """A delta's fixed parts, where there is one kind of it."""
        return events.AROUND_TEXT if self._content is None else None

    def failure(self, finish: FinishReason) -> Failure | None:
        """Whatever ended it from outside or by a fault."""
        return failure_of_end(finish)

    def closing(self) -> bytes:
        """The end of the one block, why the answer ends and what it cost, the end of the message."""
        in_calls = self._content is not None and self._content.ends_in_calls
        stop = events.stop_members(self._finish, self._call.max_tokens, in_calls=in_calls)
        usage = events.usage_members(_usage(self._generation), _thinking_tokens(self._content))
        return b"".join(
            (
                events.event("content_block_stop", index=0) if self._content is None else b"",
                events.event("message_delta", delta=stop, usage=usage),
                events.event("message_stop"),
            )
        )

    def broken(self, failure: Failure) -> bytes:
        """An event of type `error`."""
        return named_event(b"error", msgspec.json.encode(error_object(failure, self._request_id)))


def _thinking_tokens(content: Content | None) -> int | None:
    return None if content is None else content.thought.tokens


def _usage(generation: Generation) -> Usage:
    """What the request has cost so far."""
    (state,) = generation.states
    return state.usage or Usage(_num_prompt(generation), 0)


def _num_prompt(generation: Generation) -> int:
    (state,) = generation.states
    return len(state.input_ids)
