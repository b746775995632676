"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's conversations become one prompt through the chat template."""

from __future__ import annotations

from functools import partial

from millstream.entry.anthropic.answer import Call, answer
from millstream.entry.anthropic.conversation import item_count, to_chat
from millstream.entry.anthropic.protocol import COUNT_TOKENS, MESSAGES, MessagesRequest, PromptFields
from millstream.entry.anthropic.wish import wish_of
from millstream.entry.chat_rendering import render
from millstream.entry.fields import check_count, check_range
from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.prompt_encoder import ITEM_CHARS
from millstream.entry.sampling import SamplingFields
from millstream.entry.service import Service
from millstream.entry.terms import read_terms
from millstream.entry.turn import Turn, plan
from millstream.errors import RequestError
from millstream.messages import SamplingParams
from millstream.messages.sampling import MAX_COUNT, MAX_STOP_LENGTH, MAX_STOP_STRINGS

MAX_TEMPERATURE = 1


async def messages(exchange: Exchange, service: Service) -> None:
    """Answer one request for a message."""
    received = service.clock()
    request = MESSAGES.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: MessagesRequest, received: float) -> None:
    service.check_ready()
    model = service.resolve_model(request.model)
    sampling = to_sampling(request)
    terms = read_terms(exchange, service, request, received)
    turn = plan(wish_of(request), service)
    prompt = await terms.in_time(prompt_of(service, request, turn))
    said = turn.after(prompt)
    asked = terms.request(prompt, sampling)
    said.bind([asked])
    call = Call(
        request=asked,
        origin=Origin(
            api="messages",
            model=model,
            prompt_param="messages",
            caller=exchange.caller,
            default_max_new_tokens=request.max_tokens,
        ),
        max_tokens=request.max_tokens,
        stream=request.stream,
        said=said,
        shows_thinking=request.thinking is None or request.thinking.display != "omitted",
    )
    await answer(exchange, service, call)


async def count_tokens(exchange: Exchange, service: Service) -> None:
    """Answer `{"input_tokens"}`: how many tokens the prompt of the same request for a message has."""
    request = COUNT_TOKENS.parse(await exchange.read_object())
    await exchange.while_connected(_count(exchange, service, request))


async def _count(exchange: Exchange, service: Service, request: PromptFields) -> None:
    prompts = service.manager.prompts
    service.resolve_model(request.model)
    prompt = await prompt_of(service, request, plan(wish_of(request), service))
    (ids,) = await prompts.encode_all([prompt], add_special_tokens=False)
    await exchange.send_json({"input_tokens": len(ids)})


def to_sampling(request: MessagesRequest) -> SamplingParams:
    """The sampling parameters. Their limit is open but for 0, which makes nothing: the context may shorten `max_tokens`.

    Raises:
        RequestError: a value is out of Anthropic's range.
    """
    check_range("max_tokens", request.max_tokens, 0, MAX_COUNT)
    check_range("temperature", request.temperature, 0, MAX_TEMPERATURE)
    if not 0 <= request.top_k <= MAX_COUNT:
        raise RequestError(f"top_k is {request.top_k}; it must be from 0 (off) to {MAX_COUNT}.", param="top_k")
    _check_stop_sequences(request.stop_sequences)
    fields = SamplingFields(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k or -1,
        seed=request.seed,
        stop=request.stop_sequences,
    )
    return fields.to_sampling(max_new_tokens=None if request.max_tokens else 0, min_new_tokens=0)


def _check_stop_sequences(texts: list[str]) -> None:
    check_count("stop_sequences", len(texts), MAX_STOP_STRINGS)
    for index, text in enumerate(texts):
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise RequestError(
                f"stop_sequences[{index}] has {len(text)} characters; it must have from 1 to {MAX_STOP_LENGTH}.",
                param=f"stop_sequences[{index}]",
            )


async def prompt_of(service: Service, request: PromptFields, turn: Turn) -> str | list[int]:
    """The prompt of a conversation, text or ids. A last message of the assistant is continued.

    Raises:
        RequestError: it cannot be read or written.
    """
    convert = partial(to_chat, request, writes_tool_calls=service.chat.template_for(has_tools=True).writes_tool_calls)
    chat = await service.manager.prompts.off_loop(ITEM_CHARS * item_count(request), convert)
    continues = bool(chat) and chat[-1]["role"] == "assistant"
    rendering = render(
        service,
        chat,
        tools=turn.template_tools,
        add_generation_prompt=None,
        continue_final_message=continues,
        kwargs={**turn.template_kwargs, **request.chat_template_kwargs},
    )
    try:
        return await rendering
    except RequestError as error:
        if error.param != "continue_final_message":
            raise
        message = "messages ends with the assistant's, which this model's chat template cannot continue."
        raise RequestError(message, param="messages") from None
