"""The prompts of a body of /generate: text, token ids or embeddings, one or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from millstream.entry.fields import check_count
from millstream.entry.input_embeds import PARAM as EMBEDS
from millstream.entry.input_embeds import InputEmbeds, is_batch, parse_input_embeds
from millstream.entry.native.protocol import GenerateRequest
from millstream.entry.prompt_encoder import PromptEncoder
from millstream.errors import RequestError
from millstream.messages import EngineInfo


class Prompts(NamedTuple):
    """All of them, what the client calls them, and whether it sent a list of them."""

    name: str
    items: Sequence[str | list[int] | InputEmbeds]
    is_batch: bool

    def param(self, index: int) -> str:
        """What the client calls one of them."""
        return f"{self.name}[{index}]" if self.is_batch else self.name


async def read_prompts(request: GenerateRequest, encoder: PromptEncoder, engine: EngineInfo, capacity: int) -> Prompts:
    """Find the prompts; embeddings are read where there are many of them by `encoder`, off the event loop.

    Raises:
        RequestError: there are none or more than `capacity`, they are given twice or mixed, or embeddings are wrong.
    """
    given = [name for name in ("text", "input_ids", EMBEDS) if getattr(request, name) is not None]
    if len(given) != 1:
        raise RequestError("Exactly one of text, input_ids and input_embeds must be given.", param="text")
    name: str = given[0]
    value: str | list[Any] = getattr(request, name)
    several = _are_several(name, value)
    if several:
        check_count(name, len(value), capacity, "prompts")
    if name == EMBEDS:
        _refuse_ids(request)
        return Prompts(name, await parse_input_embeds(encoder, engine, value), several)
    return Prompts(name, cast("list[str | list[int]]", value if several else [value]), several)


def _are_several(name: str, value: str | list[Any]) -> bool:
    """Whether a field has a list of prompts."""
    if isinstance(value, str):
        return False
    if name == EMBEDS:
        return is_batch(value)
    if name == "text":
        if not value:
            raise RequestError("text is an empty list.", param="text")
        return True
    if not any(isinstance(item, list) for item in value):
        return False
    if not all(isinstance(item, list) for item in value):
        raise RequestError("input_ids mixes token ids and lists of them.", param="input_ids")
    return True


def _refuse_ids(request: GenerateRequest) -> None:
    """Embeddings are no tokens: nothing can be told of the ids of such a prompt."""
    starts = request.logprob_start_len if isinstance(request.logprob_start_len, list) else [request.logprob_start_len]
    if any(start >= 0 for start in starts):
        raise RequestError("logprob_start_len must be -1: a prompt of input_embeds has no tokens.", param="logprob_start_len")
    if request.return_prompt_token_ids:
        raise RequestError(
            "return_prompt_token_ids must be false: a prompt of input_embeds has no tokens.", param="return_prompt_token_ids"
        )
