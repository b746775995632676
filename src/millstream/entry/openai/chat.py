"""POST /v1/chat/completions: messages become one prompt through the chat template."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from millstream.entry.deadline import before, resolve_deadline
from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.answer import Call, answer
from millstream.entry.openai.call import check_choices, check_stream_options, make_requests, resolve_rid
from millstream.entry.openai.chunks import CHAT_SHAPE
from millstream.entry.openai.messages import check_messages, item_count, text_size
from millstream.entry.openai.protocol import CHAT, ChatCompletionRequest
from millstream.entry.openai.reading import offered_tools, reading_of
from millstream.entry.openai.wanted import Wanted
from millstream.entry.priority import check_priority
from millstream.entry.service import Service
from millstream.entry.tokenize import INLINE_CHARS, ITEM_CHARS
from millstream.errors import RequestError


async def chat_completions(exchange: Exchange, service: Service) -> None:
    """Answer one chat request."""
    received = service.clock()
    request = CHAT.parse(await exchange.read_object())
    await exchange.while_connected(_run(exchange, service, request, received))


async def _run(exchange: Exchange, service: Service, request: ChatCompletionRequest, received: float) -> None:
    service.check_ready()
    model = service.resolve_model(request.model)
    check_choices(request.n, prompts=1, places=service.places)
    check_stream_options(request)
    wanted = _wanted(request, service)
    check_priority(request.priority, is_enabled=service.config.enable_priority_scheduling)
    rid = resolve_rid(request.rid)
    deadline = resolve_deadline(exchange, request.timeout, service.config.request_timeout_s, received)
    tools = offered_tools(request, service)
    rendering = render(
        service,
        request.messages,
        tools=request.tools if tools is not None else None,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        kwargs=request.chat_template_kwargs,
    )
    prompt = await before(deadline, received, service.clock, rendering)
    reading = reading_of(request, service, tools, prompt)
    if reading is not None and reading.needs_special_tokens:
        request.skip_special_tokens = False
    call = Call(
        rid=rid,
        fields=request,
        requests=make_requests(
            request,
            rid,
            [prompt],
            add_special_tokens=False,
            deadline=deadline,
            received=received,
            adapted=service.clock(),
            logprobs=wanted.params(),
        ),
        origin=Origin(api="chat", model=model, prompt_param="messages", request_id=exchange.request_id),
        shape=CHAT_SHAPE,
        wanted=wanted,
        reading=reading,
    )
    await answer(exchange, service, call)


def _wanted(request: ChatCompletionRequest, service: Service) -> Wanted:
    """What the request says about log probabilities.

    Raises:
        RequestError: it is wrong.
    """
    top = request.top_logprobs
    if top and not request.logprobs:
        raise RequestError(f"top_logprobs is {top}; it is only allowed with logprobs = true.", param="top_logprobs")
    wanted = Wanted(output=(top or 0) if request.logprobs else None, prompt=request.prompt_logprobs)
    names = {"top_logprobs": top, "prompt_logprobs": request.prompt_logprobs}
    wanted.check(names, stream=request.stream, engine=service.manager.engine)
    return wanted


async def render(
    service: Service,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    kwargs: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> str | list[int]:
    """The prompt of a conversation, made off the event loop where it is long: text or, where only those are right, ids.

    `tools` are offered in it; they have been checked.

    Raises:
        RequestError: the messages are wrong, or the template refuses them.
    """
    chat, prompts = service.chat, service.manager.prompts
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    first_tooled = check_messages(messages)
    template = chat.template_for(has_tools=first_tooled is not None or tools is not None)
    if first_tooled is not None and not template.writes_tool_calls:
        where = f"messages[{first_tooled}]"
        raise RequestError(f"{where} belongs to a tool call, which this model's chat template cannot write.", param=where)
    size = text_size(messages) + (0 if tools is None else len(msgspec.json.encode(tools)))
    prompts.check_size(size, "messages")
    work = partial(
        chat.render,
        template,
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        kwargs=kwargs,
    )
    cost = size + ITEM_CHARS * (item_count(messages) - 1)
    text = await prompts.off_loop(max(cost, INLINE_CHARS + 1) if template.is_slow else cost, work)
    if not chat.needs_ids(text):
        return text
    return await prompts.encode(text, add_special_tokens=False, param="messages", encode=chat.encode)
