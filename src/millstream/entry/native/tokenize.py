"""POST /tokenize and /detokenize: the server's own tokenizer and chat rendering, for clients that count or cut."""

from __future__ import annotations

from typing import Any

from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import DETOKENIZE, TOKENIZE, TokenizeRequest
from millstream.entry.openai.chat import render
from millstream.entry.openai.completions import is_ids
from millstream.entry.service import Service
from millstream.errors import RequestError
from millstream.messages.sampling import verify_token_ids


async def tokenize(exchange: Exchange, service: Service) -> None:
    """Answer `{"tokens", "count", "max_model_len"}`; lists of them for a list of prompts."""
    request = TOKENIZE.parse(await exchange.read_object())
    await exchange.while_connected(_tokenize(exchange, service, request))


async def _tokenize(exchange: Exchange, service: Service, request: TokenizeRequest) -> None:
    manager = service.manager
    service.resolve_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("Exactly one of prompt and messages must be given.", param="prompt")
    add_special_tokens = request.add_special_tokens and request.messages is None  # a template writes its own
    if request.messages is not None:
        texts = [
            await render(
                service,
                request.messages,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                kwargs=request.chat_template_kwargs,
            )
        ]
    else:
        texts = request.prompt if isinstance(request.prompt, list) else [request.prompt or ""]
    ids = [await manager.prompts.encode(text, add_special_tokens=add_special_tokens, param="prompt") for text in texts]
    several = isinstance(request.prompt, list)
    await exchange.send_json(
        {
            "tokens": ids if several else ids[0],
            "count": [len(each) for each in ids] if several else len(ids[0]),
            "max_model_len": manager.engine.context_length,
        }
    )


async def detokenize(exchange: Exchange, service: Service) -> None:
    """Answer `{"text"}`; a list for a list of lists."""
    request = DETOKENIZE.parse(await exchange.read_object())
    await exchange.while_connected(_detokenize(exchange, service, request.tokens, request))


async def _detokenize(exchange: Exchange, service: Service, tokens: list[Any], request: Any) -> None:
    manager = service.manager
    service.resolve_model(request.model)
    several = bool(tokens) and isinstance(tokens[0], list)
    lists = tokens if several else [tokens]
    if not all(each == [] or is_ids(each) for each in lists):
        raise RequestError("tokens must be a list of token ids, or a list of such lists.", param="tokens")
    for ids in lists:
        verify_token_ids("tokens", ids, manager.tokenizer.vocab_size)

    def decode() -> list[str]:
        return [
            manager.tokenizer.decode(
                ids,
                skip_special_tokens=request.skip_special_tokens,
                spaces_between_special_tokens=request.spaces_between_special_tokens,
            )
            for ids in lists
        ]

    texts = await manager.prompts.off_loop(sum(map(len, lists)), decode)
    await exchange.send_json({"text": texts if several else texts[0]})
