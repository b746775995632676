"""POST /v1/chat/completions: messages become one prompt through the chat template."""

from __future__ import annotations

from millstream.entry.chat_rendering import render
from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.answer import Call, answer
from millstream.entry.openai.call import check_choices, check_stream_options, make_requests
from millstream.entry.openai.chunks import CHAT_SHAPE
from millstream.entry.openai.logprob_options import LogprobOptions
from millstream.entry.openai.protocol import CHAT, ChatCompletionRequest
from millstream.entry.openai.reading import wish_of
from millstream.entry.service import Service
from millstream.entry.terms import read_terms
from millstream.entry.turn import plan
from millstream.errors import RequestError


async def chat_completions(exchange: Exchange, service: Service) -> None:
    """Answer one chat request."""
    received = service.clock()
    request = CHAT.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: ChatCompletionRequest, received: float) -> None:
    service.check_ready()
    model = service.resolve_model(request.model)
    check_choices(request.n, prompts=1, capacity=service.capacity)
    check_stream_options(request)
    logprobs = _logprob_options(request, service)
    terms = read_terms(exchange, service, request, received)
    turn = plan(wish_of(request), service)
    rendering = render(
        service,
        request.messages,
        tools=turn.template_tools,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        kwargs={**turn.template_kwargs, **request.chat_template_kwargs},
    )
    prompt = await terms.in_time(rendering)
    said = turn.after(prompt)
    requests = make_requests(request, terms, [prompt], add_special_tokens=False, logprobs=logprobs.params())
    said.bind(requests)
    call = Call(
        rid=terms.rid,
        fields=request,
        requests=requests,
        origin=Origin(api="chat", model=model, prompt_param="messages", caller=exchange.caller),
        shape=CHAT_SHAPE,
        logprobs=logprobs,
        said=said,
        shows_reasoning=request.include_reasoning,
    )
    await answer(exchange, service, call)


def _logprob_options(request: ChatCompletionRequest, service: Service) -> LogprobOptions:
    """What the request says about log probabilities.

    Raises:
        RequestError: it is wrong.
    """
    top = request.top_logprobs
    if top and not request.logprobs:
        raise RequestError(f"top_logprobs is {top}; it is only allowed with logprobs = true.", param="top_logprobs")
    logprobs = LogprobOptions(output=(top or 0) if request.logprobs else None, prompt=request.prompt_logprobs)
    names = {"top_logprobs": top, "prompt_logprobs": request.prompt_logprobs}
    logprobs.check(names, stream=request.stream, engine=service.manager.engine)
    return logprobs
