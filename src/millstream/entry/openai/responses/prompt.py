"""The prompt of a response, and POST /v1/responses/input_tokens, which counts its tokens and makes nothing of it."""

from __future__ import annotations

from millstream.entry.chat_rendering import render
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.responses.conversation import to_messages
from millstream.entry.openai.responses.history import conversation
from millstream.entry.openai.responses.ids import new_response_id
from millstream.entry.openai.responses.items import Item
from millstream.entry.openai.responses.protocol import INPUT_TOKENS, InputTokensRequest, PromptRequest, check_modes
from millstream.entry.openai.responses.wish import wish_of
from millstream.entry.service import Service
from millstream.entry.turn import Turn, plan
from millstream.errors import RequestError


async def prompt_of(service: Service, request: PromptRequest, items: list[Item], turn: Turn) -> str | list[int]:
    """The prompt for a conversation, text or ids.

    Raises:
        RequestError: the template refuses it, or it is too long; what is wrong with the messages is wrong with the input that
            they were made of.
    """
    messages = to_messages(request.instructions, items)
    rendering = render(
        service,
        messages,
        tools=turn.template_tools,
        add_generation_prompt=True,
        continue_final_message=False,
        kwargs={**turn.template_kwargs, **request.chat_template_kwargs},
    )
    try:
        return await rendering
    except RequestError as error:
        if error.param is None or not error.param.startswith("messages"):
            raise
        raise RequestError(error.message, param="input", code=error.code) from None


async def count_input_tokens(exchange: Exchange, service: Service) -> None:
    """Answer how many tokens the prompt of a request for a response would have."""
    request = INPUT_TOKENS.parse(await exchange.read_object())
    check_modes(request)
    await exchange.while_connected(_count(exchange, service, request))


async def _count(exchange: Exchange, service: Service, request: InputTokensRequest) -> None:
    prompts = service.manager.prompts
    service.resolve_model(request.model)
    turn = plan(wish_of(request), service)
    items = await conversation(service, request, new_response_id(service.entry), exchange.owner)
    (ids,) = await prompts.encode_all([await prompt_of(service, request, items, turn)], add_special_tokens=False)
    await exchange.send_json({"object": "response.input_tokens", "input_tokens": len(ids)})
