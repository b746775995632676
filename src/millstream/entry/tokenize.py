"""CallTokenizer: GenerateReqInput -> TokenizedGenerateReqInput. Text becomes ids, limits are checked, nothing is left open.

Called by the TokenizerManager for each call, between registering its requests and sending them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from millstream.entry.failure import RequestFailed
from millstream.entry.fields import refusal
from millstream.entry.generation import Generation, Origin
from millstream.entry.prompt_encoder import PromptEncoder, is_quick
from millstream.entry.state import ReqState
from millstream.errors import ContextLengthExceeded, InvariantError, RequestError
from millstream.grammar.checker import GrammarChecker
from millstream.messages import EngineInfo, GenerateReqInput, TokenizedGenerateReqInput
from millstream.messages.details import LogprobParams, verify_prompt_values
from millstream.messages.grammar import GrammarSpec
from millstream.messages.sampling import verify_token_ids
from millstream.observe.recorder import Recorder

EMBEDS_NAMESPACE = "embeds:"  # how the namespace of a prompt of embeddings begins, and of no other


class CallTokenizer:
    """Tokenises the calls of entry worker `entry`. `num_ids` is the size of the tokenizer's own vocabulary."""

    def __init__(
        self,
        prompts: PromptEncoder,
        grammars: GrammarChecker,
        engine: EngineInfo,
        *,
        num_ids: int,
        entry: int,
        recorder: Recorder,
        clock: Callable[[], float],
        new_seed: Callable[[], int],
    ) -> None:
        self._prompts = prompts
        self._grammars = grammars
        self._engine = engine
        self._num_ids = num_ids
        self._entry = entry
        self._recorder = recorder
        self._clock = clock
        self._new_seed = new_seed

    async def tokenize(self, generation: Generation) -> list[TokenizedGenerateReqInput]:
        """Give every request of a call its ids and its final form. All are checked before the caller sends one.

        Raises:
            RequestError: one is wrong.
            RequestFailed: one was ended meanwhile.
        """
        await self._find_ids(generation)
        verify_prompt_values(
            sum(state.obj.logprobs.num_prompt_values(len(state.input_ids)) for state in generation.states if state.obj.logprobs)
        )
        await self._check_grammars(generation)
        for state in generation.states:
            if state.failure is not None:  # ended while it was being tokenised
                raise RequestFailed(state.failure)
            if state.obj.sampling.seed is None:
                state.obj.sampling = msgspec.structs.replace(state.obj.sampling, seed=self._new_seed())
        call = generation.rid if len(generation.states) > 1 else ""
        return [self._finalize(state, generation.origin, call) for state in generation.states]

    async def _find_ids(self, generation: Generation) -> None:
        """Encode and check every prompt. Equal texts are encoded once."""
        known: dict[tuple[str, bool], list[int]] = {}
        num_chars = 0
        for state in generation.states:
            obj = state.obj
            param = generation.origin.prompt_name(state.index)
            if obj.text is not None:
                key = (obj.text, obj.add_special_tokens)
                if key not in known:
                    num_chars += len(obj.text)
                    if known and not is_quick(num_chars):  # many short texts are as good as a long one
                        num_chars = await asyncio.sleep(0, len(obj.text))
                        generation.check_failures()
                    encode = partial(
                        self._prompts.encode, obj.text, add_special_tokens=obj.add_special_tokens, param=param, rid=state.rid
                    )
                    known[key] = await (encode() if is_quick(len(obj.text)) else generation.unless_ended(encode))
                state.input_ids = known[key]
            is_ours = obj.text is not None and self._num_ids <= self._engine.vocab_size
            check_prompt(state.input_ids, self._engine, param, is_ours=is_ours, is_prompt_only=obj.is_prompt_only)
            obj.timing.tokenized = self._clock()

    async def _check_grammars(self, generation: Generation) -> None:
        """Have the grammars of a call checked: none is dispatched before."""
        for state in generation.states:
            spec = state.obj.sampling.grammar
            if spec is not None:
                started, result = self._clock(), "failed"
                try:
                    checked = await generation.unless_ended(partial(self._grammars.check, spec))
                    result = "ok"
                except RequestError:
                    result = "refused"
                    raise
                finally:
                    self._recorder.grammar(result, self._clock() - started)
                state.obj.sampling = msgspec.structs.replace(state.obj.sampling, grammar=checked)
                state.obj.timing.checked = self._clock()

    def _finalize(self, state: ReqState, origin: Origin, call: str) -> TokenizedGenerateReqInput:
        return finalize(
            state.obj,
            state.input_ids,
            self._engine,
            origin,
            index=state.index,
            slot=state.slot,
            entry=self._entry,
            call=call,
        )


def check_prompt(
    input_ids: list[int], engine: EngineInfo, param: str, *, is_ours: bool = False, is_prompt_only: bool = False
) -> None:
    """Check a prompt's ids. With `is_ours` they come from our own tokenizer and are in the vocabulary.

    Raises:
        RequestError: there are none, or one is outside the vocabulary.
        ContextLengthExceeded: it does not fit, with room for a single new token unless it `is_prompt_only`.
    """
    if not input_ids:
        raise RequestError("The prompt is empty: it has no tokens.", param=param)
    if len(input_ids) > engine.context_length - (not is_prompt_only):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {engine.context_length} tokens; "
            f"the prompt has {len(input_ids)} tokens{'' if is_prompt_only else ', which leaves no room for an answer'}.",
            param=param,
        )
    if not is_ours and (min(input_ids) < 0 or max(input_ids) >= engine.vocab_size):
        verify_token_ids(param, input_ids, engine.vocab_size)  # slower: it finds the one to name


def check_has_logprobs(engine: EngineInfo, param: str) -> None:
    """Check that the executor can do what `param` asks for.

    Raises:
        RequestError: it gives no log probabilities.
    """
    if not engine.has_logprobs:
        raise refusal(param, f"the executor `{engine.executor}` gives no log probabilities")


def check_logprobs(params: LogprobParams, engine: EngineInfo) -> None:
    """Check what a request wants to be told, as far as its prompt has no part in it.

    Raises:
        RequestError: the executor tells no log probabilities, or a value is out of range.
    """
    check_has_logprobs(engine, "logprobs")
    params.verify(engine.vocab_size)


def check_grammar(spec: GrammarSpec, engine: EngineInfo) -> None:
    """Check that the engine can hold a text to a grammar at all.

    Raises:
        RequestError: it cannot.
    """
    if not engine.has_grammars:
        raise refusal(spec.param, f"the executor `{engine.executor}` or this model's tokenizer allows no grammars")


def finalize(
    obj: GenerateReqInput,
    input_ids: list[int],
    engine: EngineInfo,
    origin: Origin,
    *,
    index: int = 0,
    slot: int = 0,
    entry: int = 0,
    call: str = "",
) -> TokenizedGenerateReqInput:
    """Resolve the number of new tokens and give the request its final form.

    `input_ids` passed `check_prompt`; `entry` owns the request, as number `index` of `call`.

    Raises:
        RequestError: `min_tokens` is more than what may be made, or too many log probabilities are asked for.
        ContextLengthExceeded: prompt and the new tokens the client asked for do not fit.
        InvariantError: embeddings came without a namespace of their own.
    """
    if (obj.input_embeds is not None) != obj.cache_namespace.startswith(EMBEDS_NAMESPACE):
        raise InvariantError(f"the prefix-cache namespace of {obj.rid} does not tell its embeddings")
    room = engine.context_length - len(input_ids)
    asked = 0 if obj.is_prompt_only else obj.sampling.max_new_tokens
    param = origin.prompt_name(index)
    if asked is not None and asked > room:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {engine.context_length} tokens; you requested {len(input_ids) + asked} "
            f"({len(input_ids)} in the prompt, {asked} to be generated).",
            param=param,
        )
    default = origin.default_max_new_tokens
    max_new_tokens = asked if asked is not None else room if default is None else min(default, room)
    if obj.sampling.min_new_tokens > max_new_tokens:
        raise RequestError(
            f"min_tokens is {obj.sampling.min_new_tokens}; at most {max_new_tokens} tokens can be generated.",
            param="min_tokens",
        )
    if obj.logprobs is not None:
        obj.logprobs.verify_lengths(len(input_ids), max_new_tokens)
    return TokenizedGenerateReqInput(
        rid=obj.rid,
        slot=slot,
        entry=entry,
        call=call,
        input_ids=input_ids,
        sampling=msgspec.structs.replace(obj.sampling, max_new_tokens=max_new_tokens),
        max_new_tokens=max_new_tokens,
        cache_namespace=obj.cache_namespace,
        priority=obj.priority,
        deadline=obj.deadline,
        progress=obj.progress,
        logprobs=obj.logprobs,
        wants_embedding=obj.wants_embedding,
        input_embeds=obj.input_embeds,
        is_probe=obj.is_probe,
        timing=obj.timing,
    )
