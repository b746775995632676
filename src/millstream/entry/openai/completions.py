"""POST /v1/completions: prompts as they are, text or token ids, one or a list."""

from __future__ import annotations

from typing import Any

from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.answer import Call, answer
from millstream.entry.openai.call import check_choices, check_stream_options, make_requests
from millstream.entry.openai.chunks import COMPLETION_SHAPE
from millstream.entry.openai.logprob_options import LogprobOptions
from millstream.entry.openai.protocol import COMPLETIONS, CompletionRequest
from millstream.entry.prompts import parse_prompts
from millstream.entry.service import Service
from millstream.entry.terms import read_terms
from millstream.errors import RequestError

DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def completions(exchange: Exchange, service: Service) -> None:
    """Answer one completions request."""
    received = service.clock()
    request = COMPLETIONS.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: CompletionRequest, received: float) -> None:
    service.check_ready()
    model = service.resolve_model(request.model)
    _check_width(request, prompts=_count(request.prompt), capacity=service.capacity)
    check_stream_options(request)
    logprobs = _logprob_options(request, service)
    prompts, several = parse_prompts(request.prompt, "prompt")
    terms = read_terms(exchange, service, request, received)
    call = Call(
        rid=terms.rid,
        fields=request,
        requests=make_requests(
            request,
            terms,
            prompts,
            add_special_tokens=request.add_special_tokens,
            width=request.width,
            least_tokens=0,  # only to read the prompt: for its log probabilities, or to have it cached
            logprobs=logprobs.params(),
        ),
        origin=Origin(
            api="completions",
            model=model,
            prompt_param="prompt",
            caller=exchange.caller,
            default_max_new_tokens=DEFAULT_MAX_TOKENS,
        ),
        shape=COMPLETION_SHAPE,
        logprobs=logprobs,
        width=request.width,
        echo=prompts if request.echo else None,
        several_prompts=several,
    )
    await answer(exchange, service, call)


def _check_width(request: CompletionRequest, prompts: int, capacity: int) -> None:
    """Check `n` and `best_of`, how many choices are given and how many are made for them.

    Raises:
        RequestError: one of them is out of range, or a choice is to be streamed that may not be given.
    """
    check_choices(request.n, prompts, capacity)
    best_of = request.best_of
    if best_of is None:
        return
    if best_of < request.n:
        raise RequestError(f"best_of is {best_of}; it must be at least n, {request.n}.", param="best_of")
    check_choices(best_of, prompts, capacity, param="best_of")
    if request.stream and best_of > request.n:
        raise RequestError(f"best_of is {best_of}; in a stream it must equal n, {request.n}.", param="best_of")


def _logprob_options(request: CompletionRequest, service: Service) -> LogprobOptions:
    """What the request says about log probabilities.

    Raises:
        RequestError: it is wrong.
    """
    logprobs = LogprobOptions(request.logprobs, request.prompt_logprobs, echo=request.echo, ranks=request.width > request.n)
    names = {"logprobs": request.logprobs, "prompt_logprobs": request.prompt_logprobs}
    logprobs.check(names, stream=request.stream, engine=service.manager.engine)
    return logprobs


def _count(prompt: str | list[Any]) -> int:
    """How many prompts these are, as far as the first item tells."""
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
