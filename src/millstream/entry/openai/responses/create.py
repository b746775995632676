"""POST /v1/responses: the conversation so far and the new input become one prompt; its answer is sent, and kept."""

from __future__ import annotations

import logging

import msgspec

from millstream.entry.failure import INTERNAL, RequestFailed, failure_of_unasked_end
from millstream.entry.fields import refusal
from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.responses.body import Draft
from millstream.entry.openai.responses.events import ResponseStream
from millstream.entry.openai.responses.history import conversation
from millstream.entry.openai.responses.ids import new_response_id
from millstream.entry.openai.responses.job import Job
from millstream.entry.openai.responses.output import Output
from millstream.entry.openai.responses.prompt import prompt_of
from millstream.entry.openai.responses.protocol import RESPONSES, ResponseRequest
from millstream.entry.openai.responses.tokens import TokenList, check_readable, logprob_options
from millstream.entry.openai.responses.wish import wish_of
from millstream.entry.service import Service
from millstream.entry.stream import stream_answer
from millstream.entry.terms import read_terms
from millstream.entry.turn import plan
from millstream.entry.whole import collect

log = logging.getLogger(__name__)


async def create_response(exchange: Exchange, service: Service) -> None:
    """Make one response."""
    received = service.clock()
    request = RESPONSES.parse(await exchange.read_object())
    request.check()
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: ResponseRequest, received: float) -> None:
    job = await _start(exchange, service, request, received)
    if request.background:
        service.responses.run(_in_background(job))
        await exchange.send_json(job.now())
        return
    with job.running():
        if request.stream:
            await stream_answer(exchange, service, job.generation, ResponseStream(job))
        else:
            (made,) = await collect(job.generation, failure_of_unasked_end)
            await exchange.send_json(await job.end_whole(made))
            job.generation.stamp_written(service.clock(), last=True)


async def _start(exchange: Exchange, service: Service, request: ResponseRequest, received: float) -> Job:
    """Understand a request and have it admitted. The caller runs the job it gets, at once."""
    service.check_ready()
    model = service.resolve_model(request.model)
    if request.background and not service.config.max_stored_responses:
        raise refusal("background", "the server keeps no responses")
    manager = service.manager
    logprobs = logprob_options(request, manager.engine)
    response_id = new_response_id(service.entry)
    terms = read_terms(exchange, service, request, received, default_rid=response_id)
    turn = plan(wish_of(request), service)
    items = await terms.in_time(conversation(service, request, response_id, exchange.owner))
    prompt = await terms.in_time(prompt_of(service, request, items, turn))
    said = turn.after(prompt)
    check_readable(logprobs, said.reading, request)
    req = terms.request(
        prompt,
        request.to_sampling(max_new_tokens=request.max_output_tokens, min_new_tokens=request.min_tokens),
        progress=request.stream_options is not None and bool(request.stream_options.include_progress),
        logprobs=logprobs.params(),
    )
    said.bind([req])
    origin = Origin(api="responses", model=model, prompt_param="input", caller=exchange.caller)
    generation = await manager.generate_request(terms.rid, [req], origin)
    kept = msgspec.json.encode(items) if request.store else b"[]"
    draft = Draft(id=response_id, request=request, model=model, items=kept)
    tokens = TokenList(logprobs, service.text.tokenizer, generation.states[0])
    output = Output(response_id, said, service.text.tokenizer.single)
    return Job(draft, generation, output, tokens, owner=exchange.owner, store=service.responses, manager=manager)


async def _in_background(job: Job) -> None:
    """Make a response that is read from the store."""
    with job.running():
        try:
            (made,) = await collect(job.generation, failure_of_unasked_end)
            await job.end_whole(made)
        except RequestFailed as error:
            job.end(error.failure)
        except Exception:
            log.exception("the background response %s failed", job.draft.id)
            job.generation.is_broken = True
            job.end(INTERNAL)
