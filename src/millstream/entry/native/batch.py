"""A body of /generate, taken apart into its prompts: what is a list for a batch goes to the prompt it is for.

Everything is checked here that can be known without a tokenizer, before anything is registered; errors name the item.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from millstream.entry.fields import check_range
from millstream.entry.input_embeds import InputEmbeds
from millstream.entry.limits import MAX_CHOICES
from millstream.entry.native.logprobs import LogprobOptions, parse_logprob_options
from millstream.entry.native.prompts import read_prompts
from millstream.entry.native.protocol import DEFAULT_MAX_NEW_TOKENS, SAMPLING, GenerateRequest, NativeSampling
from millstream.entry.prompt_encoder import PromptEncoder
from millstream.entry.sampling import cache_namespace, check_seed
from millstream.entry.tokenize import check_prompt
from millstream.errors import RequestError
from millstream.messages import EngineInfo, SamplingParams

_OWN_NAMES = re.compile(r"\b(max|min)_tokens\b")  # what the shared checks call the two limits
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt with all that is asked of it. `sampling` is the first choice's."""

    text: str | None
    input_ids: list[int] | None
    input_embeds: bytes | None
    sampling: SamplingParams
    cache_namespace: str
    logprobs: LogprobOptions | None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The prompts of a call, `n` answers to each. `is_list`: the answer is a list, and events have an index."""

    name: str  # what the client calls the prompts
    prompts: list[Prompt]
    n: int
    is_batch: bool

    @property
    def is_list(self) -> bool:
        """Whether the client gets a list."""
        return self.is_batch or self.n > 1


async def read_batch(request: GenerateRequest, encoder: PromptEncoder, engine: EngineInfo, capacity: int) -> Batch:
    """Take a body apart; `capacity` is the number of requests that the server takes on at a time.

    Raises:
        RequestError: a value is wrong.
    """
    prompts = await read_prompts(request, encoder, engine, capacity)
    count = len(prompts.items)
    ids = [_ids_of(prompt) for prompt in prompts.items]
    for index, each in enumerate(ids):
        if each is not None:
            check_prompt(each, engine, prompts.param(index), is_prompt_only=True)
    spread = _Spread(count if prompts.is_batch else None)
    sampling, n = await _sampling(request.sampling_params, spread, engine)
    if n * count > capacity:
        raise RequestError(
            f"{count} prompts with n = {n} make {n * count} answers; at most {capacity} are allowed.",
            param="sampling_params.n",
        )
    for index, each in enumerate(ids):
        if each is not None and sampling[index].max_new_tokens != 0:
            check_prompt(each, engine, prompts.param(index))  # again: now it is known that something is to be made
    salts = spread("cache_salt", request.cache_salt)
    keys = spread("extra_key", request.extra_key)
    options = _logprob_options(request, spread, engine)
    return Batch(
        name=prompts.name,
        prompts=[
            Prompt(
                text=prompt if isinstance(prompt, str) else None,
                input_ids=ids[index],
                input_embeds=prompt.data if isinstance(prompt, InputEmbeds) else None,
                sampling=sampling[index],
                cache_namespace=_own_namespace(prompt) + cache_namespace(salts[index], keys[index]),
                logprobs=options[index],
            )
            for index, prompt in enumerate(prompts.items)
        ],
        n=n,
        is_batch=prompts.is_batch,
    )


def _ids_of(prompt: str | list[int] | InputEmbeds) -> list[int] | None:
    """The ids that stand for a prompt; None for a text, which is not encoded yet."""
    if isinstance(prompt, InputEmbeds):
        return prompt.input_ids
    return None if isinstance(prompt, str) else prompt


def _own_namespace(prompt: str | list[int] | InputEmbeds) -> str:
    """How the prefix-cache namespace begins: ids say all of a prompt but where they stand for embeddings."""
    return prompt.namespace if isinstance(prompt, InputEmbeds) else ""


class _Spread:
    """Gives each of `count` prompts its value of a field; None: there is one prompt, and no batch."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    def __call__(self, name: str, value: T | list[T]) -> list[T]:
        """One value for each prompt.

        Raises:
            RequestError: it is a list, and not of one item for each.
        """
        if not isinstance(value, list):
            return [value] * (self._count or 1)
        if self._count is None:
            raise RequestError(f"{name} is a list; for one prompt it must be a single value.", param=name)
        if len(value) != self._count:
            raise RequestError(
                f"{name} has {len(value)} items; it must have one for each of {self._count} prompts.", param=name
            )
        return value

    def ids(self, name: str, value: list[Any]) -> list[list[int]]:
        """The same for lists of ids: a flat one is that of every prompt.

        Raises:
            RequestError: it mixes ids and lists, or is of another length.
        """
        is_nested = any(not isinstance(item, int) for item in value)
        if not is_nested:
            return [value] * (self._count or 1)
        if any(isinstance(item, int) for item in value):
            raise RequestError(f"{name} mixes token ids and lists of them.", param=name)
        return [item or [] for item in self(name, value)]


async def _sampling(
    given: dict[str, Any] | list[dict[str, Any]], spread: _Spread, engine: EngineInfo
) -> tuple[list[SamplingParams], int]:
    """The parameters of each prompt, and how many answers each gets."""
    if isinstance(given, dict):
        fields, params = parse_sampling(given, "sampling_params", engine)
        return spread("sampling_params", params), fields.n
    items: list[dict[str, Any]] = spread("sampling_params", given)
    parsed = []
    for index, each in enumerate(items):
        parsed.append(parse_sampling(each, f"sampling_params[{index}]", engine))
        await asyncio.sleep(0)  # each may have patterns to compile, and others are served meanwhile
    n = parsed[0][0].n
    for index, (fields, _) in enumerate(parsed):
        if fields.n != n:
            raise RequestError(
                f"sampling_params[{index}].n is {fields.n}; it must be the same for all prompts, {n}.",
                param=f"sampling_params[{index}].n",
            )
    return [params for _, params in parsed], n


def parse_sampling(given: dict[str, Any], name: str, engine: EngineInfo) -> tuple[NativeSampling, SamplingParams]:
    """Parse and check one object of sampling parameters, which the client knows as `name`.

    Raises:
        RequestError: a field of it is wrong; `param` has its path.
    """
    try:
        fields = SAMPLING.parse(given)
        check_range("n", fields.n, 1, MAX_CHOICES)
        if fields.sampling_seed is not None:
            if fields.seed not in (None, fields.sampling_seed):
                raise RequestError("seed and sampling_seed differ; give one.", param="sampling_seed")
            check_seed("sampling_seed", fields.sampling_seed)
            fields.seed = fields.sampling_seed
        params = fields.to_sampling(max_new_tokens=fields.max_new_tokens, min_new_tokens=fields.min_new_tokens)
        params.verify(engine.vocab_size)
        if params.grammar is not None:
            grammar = msgspec.structs.replace(params.grammar, param=f"{name}.{params.grammar.param}")
            params = msgspec.structs.replace(params, grammar=grammar)
        if params.max_new_tokens is None and params.min_new_tokens > DEFAULT_MAX_NEW_TOKENS:
            raise RequestError(
                f"min_tokens is {params.min_new_tokens}; it must be at most max_tokens, {DEFAULT_MAX_NEW_TOKENS}.",
                param="min_tokens",
            )
    except RequestError as error:
        param = _OWN_NAMES.sub(r"\1_new_tokens", error.param or "")
        message = _OWN_NAMES.sub(r"\1_new_tokens", error.message)
        path = f"{name}.{param}" if param else name
        raise RequestError(message if path in message else f"{path}: {message}", param=path, code=error.code) from None
    return fields, params


def _logprob_options(request: GenerateRequest, spread: _Spread, engine: EngineInfo) -> list[LogprobOptions | None]:
    """What each prompt wants to know of log probabilities."""
    parse = partial(parse_logprob_options, has_text=request.return_text_in_logprobs, engine=engine)
    wanted = spread("return_logprob", request.return_logprob)
    starts = spread("logprob_start_len", request.logprob_start_len)
    tops = spread("top_logprobs_num", request.top_logprobs_num)
    ids = spread.ids("token_ids_logprob", request.token_ids_logprob)
    return [
        parse(is_wanted, start=start, top=top, token_ids=each)
        for is_wanted, start, top, each in zip(wanted, starts, tops, ids, strict=True)
    ]
