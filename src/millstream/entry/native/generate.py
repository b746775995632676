"""POST /generate: the runtime's own API, with SGLang's names. One prompt or a batch, streamed or not."""

from __future__ import annotations

import uuid
from functools import partial
from typing import NamedTuple

import msgspec

from millstream.entry.caller import Caller
from millstream.entry.deadline import resolve_deadline
from millstream.entry.failure import failure_of_unasked_end
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.answer import AnswerObject, AnswerStream, make_objects, whole_answer
from millstream.entry.native.batch import Batch, Prompt, read_batch
from millstream.entry.native.protocol import DEFAULT_MAX_NEW_TOKENS, GENERATE, GenerateRequest
from millstream.entry.priority import check_priority
from millstream.entry.release import admitted
from millstream.entry.sampling import seed_of_choice
from millstream.entry.service import Service
from millstream.entry.stream import stream_answer
from millstream.entry.terms import resolve_rid
from millstream.entry.whole import collect, num_values
from millstream.errors import RequestError
from millstream.messages import GenerateReqInput, SamplingParams, Timing


async def generate(exchange: Exchange, service: Service) -> None:
    """Answer one native request."""
    received = service.clock()
    request = GENERATE.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: GenerateRequest, received: float) -> None:
    deadline = resolve_deadline(exchange, request.timeout, service.config.request_timeout_s, received)
    call = await read_call(service, request, deadline, received, caller=exchange.caller)
    async with admitted(service.manager, call.rid, call.requests, call.origin) as generation:
        if request.stream:
            await stream_answer(exchange, service, generation, call.stream(service, generation))
        else:
            await exchange.send_json(await call.answer(service, generation))
            generation.stamp_written(service.clock(), last=True)


class NativeCall(NamedTuple):
    """A body of /generate, understood, and what its answers look like."""

    request: GenerateRequest
    batch: Batch
    rid: str
    requests: list[GenerateReqInput]
    origin: Origin

    async def answer(self, service: Service, generation: Generation) -> bytes:
        """The whole answer, once every request has ended.

        Raises:
            RequestFailed: one of them failed.
        """
        objects = self._objects(service, generation)
        made = await collect(generation, failure_of_unasked_end)
        work = partial(whole_answer, objects, made, service.clock(), is_list=self.batch.is_list)
        return await service.manager.prompts.off_loop(num_values(made), work)

    def stream(self, service: Service, generation: Generation) -> AnswerStream:
        """What the events of a stream look like."""
        is_incremental = self.request.incremental_streaming_output
        objects = self._objects(service, generation)
        return AnswerStream(objects, service.clock, is_incremental=is_incremental, is_list=self.batch.is_list)

    def _objects(self, service: Service, generation: Generation) -> list[AnswerObject]:
        shows_prompt = self.request.return_prompt_token_ids
        return make_objects(generation, self.batch, shows_prompt=shows_prompt, tokenizer=service.text.tokenizer)


async def read_call(
    service: Service, request: GenerateRequest, deadline: float | None, received: float, *, caller: Caller | None = None
) -> NativeCall:
    """Take a body apart that came at `received`: one request for each prompt and choice, in the server's terms.

    Raises:
        RequestError: a value is wrong.
        EngineDeadError: the server cannot take requests now.
    """
    check_priority(request.priority, is_enabled=service.config.enable_priority_scheduling)
    manager = service.manager
    batch = await read_batch(request, manager.prompts, manager.engine, service.capacity)
    rid, requests = _requests(request, batch, deadline, Timing(received=received, adapted=service.clock()))
    origin = Origin(
        api="generate",
        model=service.text.names[0],
        prompt_param=batch.name,
        choices_per_item=batch.n if batch.is_batch else None,
        caller=caller,
        default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
    )
    return NativeCall(request, batch, rid, requests, origin)


def _requests(
    request: GenerateRequest, batch: Batch, deadline: float | None, timing: Timing
) -> tuple[str, list[GenerateReqInput]]:
    """The rid of the call, and a request for each prompt and choice; choices of a prompt are neighbours."""
    call_rid, rids = _rids(request.rid, batch)
    return call_rid, [
        GenerateReqInput(
            rid=rids[number * batch.n + choice],
            text=prompt.text,
            input_ids=prompt.input_ids,
            sampling=_for_choice(prompt, choice),
            input_embeds=prompt.input_embeds,
            cache_namespace=prompt.cache_namespace,
            priority=request.priority,
            deadline=deadline,
            progress=request.stream and request.include_progress and number == choice == 0,  # the others are beside it
            logprobs=None if prompt.logprobs is None else prompt.logprobs.params,
            timing=msgspec.structs.replace(timing),
        )
        for number, prompt in enumerate(batch.prompts)
        for choice in range(batch.n)
    ]


def _rids(given: str | list[str] | None, batch: Batch) -> tuple[str, list[str]]:
    """The rid of the call, and one for each answer in order: `<rid>_<number>`, as SGLang's, where there are several.

    Raises:
        RequestError: one is not allowed, they are too few or too many, or two are equal.
    """
    total = len(batch.prompts) * batch.n
    if not isinstance(given, list):
        rid = resolve_rid(given)
        return rid, [rid] if total == 1 else [f"{rid}_{number}" for number in range(total)]
    if not batch.is_batch:
        raise RequestError("rid is a list; for one prompt it must be a single value.", param="rid")
    if len(given) != len(batch.prompts):
        raise RequestError(
            f"rid has {len(given)} items; it must have one for each of {len(batch.prompts)} prompts.", param="rid"
        )
    if len(set(given)) < len(given):
        raise RequestError("rid has the same item twice.", param="rid")
    names = [resolve_rid(rid) for rid in given]
    if total == 1:
        return names[0], names
    if batch.n > 1:
        names = [f"{rid}_{choice}" for rid in names for choice in range(batch.n)]
    return uuid.uuid4().hex, names


def _for_choice(prompt: Prompt, choice: int) -> SamplingParams:
    if not choice:
        return prompt.sampling
    return msgspec.structs.replace(prompt.sampling, seed=seed_of_choice(prompt.sampling.seed, choice))
