"""POST /tokenize and /detokenize: the server's own tokenizer and chat rendering, for clients that count or cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.entry.chat_rendering import render
from millstream.entry.fields import check_count
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import DETOKENIZE, TOKENIZE, TokenizeRequest
from millstream.entry.prompt_encoder import ITEM_CHARS
from millstream.entry.prompts import is_ids
from millstream.entry.service import Service
from millstream.entry.tools import offered_tools
from millstream.entry.turn import Wish, plan
from millstream.errors import RequestError
from millstream.messages.sampling import verify_token_ids

MAX_ITEMS = 1024  # prompts, or lists of ids, in one call
MIN_TEXT_CHARS = 2 * 1024 * 1024  # what a call may always hold
CONTEXT_CHARS = 16  # and this for each token of the context

_FORMS = "tokens must be a list of token ids, or a list of such lists."


async def tokenize(exchange: Exchange, service: Service) -> None:
    """Answer `{"tokens", "count", "max_model_len"}`; lists of them for a list of prompts."""
    request = TOKENIZE.parse(await exchange.read_object())
    await exchange.while_connected(_tokenize(exchange, service, request))


async def _tokenize(exchange: Exchange, service: Service, request: TokenizeRequest) -> None:
    manager = service.manager
    service.resolve_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("Exactly one of prompt and messages must be given.", param="prompt")
    tools = offered_tools(request.tools)
    if tools and request.messages is None:
        raise RequestError("tools are offered in a chat: they need messages.", param="tools")
    add_special_tokens = request.add_special_tokens and request.messages is None  # a template writes its own
    texts: Sequence[str | list[int]] = request.prompt if isinstance(request.prompt, list) else [request.prompt or ""]
    if request.messages is not None:
        turn = plan(Wish(tools=tools), service)
        rendering = render(
            service,
            request.messages,
            tools=turn.template_tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            kwargs={**turn.template_kwargs, **request.chat_template_kwargs},
        )
        texts = [await rendering]
    _check_texts(texts, manager.engine.context_length, param="prompt" if request.messages is None else "messages")
    ids = await manager.prompts.encode_all(texts, add_special_tokens=add_special_tokens)
    several = isinstance(request.prompt, list)
    await exchange.send_json(
        {
            "tokens": ids if several else ids[0],
            "count": [len(each) for each in ids] if several else len(ids[0]),
            "max_model_len": manager.engine.context_length,
        }
    )


def _check_texts(texts: Sequence[str | list[int]], context_length: int, *, param: str) -> None:
    """Text to be counted may be longer than the context, within reason."""
    check_count(param, len(texts), MAX_ITEMS)
    limit = max(MIN_TEXT_CHARS, context_length * CONTEXT_CHARS)
    if (size := sum(map(len, texts))) > limit:
        raise RequestError(f"The text has {size} characters in all; at most {limit} are allowed.", param=param)


async def detokenize(exchange: Exchange, service: Service) -> None:
    """Answer `{"text"}`; a list for a list of lists."""
    request = DETOKENIZE.parse(await exchange.read_object())
    await exchange.while_connected(_detokenize(exchange, service, request.tokens, request))


async def _detokenize(exchange: Exchange, service: Service, tokens: list[Any], request: Any) -> None:
    manager = service.manager
    service.resolve_model(request.model)
    several = bool(tokens) and isinstance(tokens[0], list)
    lists = tokens if several else [tokens]
    check_count("tokens", len(lists), MAX_ITEMS, "lists")
    if not all(isinstance(each, list) for each in lists):
        raise RequestError(_FORMS, param="tokens")

    def decode() -> list[str]:
        for ids in lists:
            if ids and not is_ids(ids):
                raise RequestError(_FORMS, param="tokens")
            verify_token_ids("tokens", ids, manager.tokenizer.vocab_size)
        return [
            manager.tokenizer.decode(
                ids,
                skip_special_tokens=request.skip_special_tokens,
                spaces_between_special_tokens=request.spaces_between_special_tokens,
            )
            for ids in lists
        ]

    texts = await manager.prompts.off_loop(sum(map(len, lists)) + ITEM_CHARS * (len(lists) - 1), decode)
    await exchange.send_json({"text": texts if several else texts[0]})
