"""From protocol-free requests to an OpenAI answer, streamed or whole: one pipeline, the same deltas, joined or not.

Called by the chat and completions adapters. Status and headers are sent after admission, never before.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from millstream.entry.failure import Failure, RequestFailed, failure_of_abort
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.errors import INTERNAL
from millstream.entry.http.exchange import ClientGone, Exchange
from millstream.entry.openai.chunks import ChunkWriter, Shape, finish_members
from millstream.entry.openai.protocol import GenerationFields, StreamOptions
from millstream.entry.openai.tally import Tally
from millstream.entry.service import Service
from millstream.entry.sse import EventStream
from millstream.messages import Abort, GenerateReqInput, TextRow
from millstream.messages.finish import AbortCause

log = logging.getLogger(__name__)


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
    cause: AbortCause = "client_gone"
    try:
        if call.fields.stream:
            await _Streamer(exchange, service, call, generation).run()
        else:
            await _whole(exchange, service, call, generation)
        cause = "aborted"  # what has not ended by now has a failed choice beside it
    except RequestFailed:
        cause = "aborted"
        raise
    finally:
        manager.release(generation, cause)


async def _whole(exchange: Exchange, service: Service, call: Call, generation: Generation) -> None:
    tally = Tally(generation, call.fields.n, keep=True)
    while not tally.done:
        for index, row in await generation.receive():
            if isinstance(row.finish, Abort):
                raise RequestFailed(failure_of_abort(row.finish))
            tally.add(index, row)
    body: dict[str, Any] = {
        "id": call.response_id,
        "object": call.shape.object,
        "created": int(time.time()),
        "model": call.origin.model,
        "choices": [_choice(call, tally, index) for index in range(len(call.requests))],
        "usage": tally.usage(),
    }
    if call.fields.return_token_ids:
        body["prompt_token_ids"] = tally.prompt_token_ids(several=call.several_prompts)
    await exchange.send_json(body)
    generation.stamp_written(service.clock(), last=True)


def _choice(call: Call, tally: Tally, index: int) -> dict[str, Any]:
    text, finish = tally.text(index), tally.finishes[index]
    assert finish is not None  # the tally is done
    chat = call.shape.opening is not None
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": index, **content, "logprobs": None, **finish_members(finish)}
    if call.fields.return_token_ids:
        choice["token_ids"] = tally.token_ids[index]
    return choice


class _Streamer:
    """One streamed answer. Order: opening chunk a choice, text as it comes, last chunk a choice, usage, `[DONE]`."""

    def __init__(self, exchange: Exchange, service: Service, call: Call, generation: Generation) -> None:
        options = call.fields.stream_options or StreamOptions()
        self._call = call
        self._generation = generation
        self._clock = service.clock
        self._ids = call.fields.return_token_ids
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        self._tally = Tally(generation, call.fields.n, keep=False)
        self._chunks = ChunkWriter(
            shape=call.shape,
            response_id=call.response_id,
            created=int(time.time()),
            model=call.origin.model,
            choices=len(call.requests),
            usage_null=self._include_usage,
        )
        self._stream = EventStream(
            exchange,
            keep_alive_s=service.config.sse_keep_alive_s,
            write_timeout_s=service.config.write_timeout_s,
            on_idle=generation.ring,
        )

    async def run(self) -> None:
        """Stream until every choice has ended, or one has failed."""
        prompts = self._tally.prompt_token_ids(several=self._call.several_prompts) if self._ids else None
        try:
            await self._stream.open(self._chunks.opening(len(self._call.requests), prompts))
            failure = await self._stream_rows()
            if failure is not None:
                await self._stream.fail(failure)
                return
            await self._stream.close(self._chunks.usage(self._tally.usage()) if self._include_usage else b"")
            self._generation.stamp_written(self._clock(), last=True)
        except RequestFailed as error:
            await self._stream.fail(error.failure)
        except ClientGone:
            raise
        except Exception:
            log.exception("streaming the answer to %s failed", self._call.rid)
            await self._stream.fail(INTERNAL)
        finally:
            self._stream.stop()

    async def _stream_rows(self) -> Failure | None:
        while not self._tally.done:
            parts: list[bytes] = []
            failure = None
            for index, row in await self._generation.receive():
                self._tally.add(index, row)
                parts += self._events(index, row)
                if isinstance(row.finish, Abort):
                    failure = failure_of_abort(row.finish)
            if parts:
                await self._stream.write(b"".join(parts))
                self._generation.stamp_written(self._clock())
            else:
                await self._stream.keep_alive()
            if failure is not None:
                return failure
        return None

    def _events(self, index: int, row: TextRow) -> list[bytes]:
        usage = self._tally.usage() if self._continuous else None
        events = []
        if row.text or (self._ids and row.token_ids):
            events.append(self._chunks.text(index, row.text, row.token_ids if self._ids else None, usage))
        if row.finish is not None and not isinstance(row.finish, Abort):
            events.append(self._chunks.finish(index, row.finish, usage))
        return events
