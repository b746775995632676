"""GenerateReqInput -> TokenizedGenerateReqInput: text becomes ids, limits are checked, nothing is left open.

Called by the TokenizerManager. Long texts are encoded in worker threads, so the event loop goes on serving; a job whose client
has left stops at its next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec

from millstream.entry.generation import Origin
from millstream.errors import ContextLengthExceeded, InvariantError, RequestError
from millstream.messages import EngineInfo, GenerateReqInput, TokenizedGenerateReqInput
from millstream.messages.details import LogprobParams
from millstream.messages.grammar import GrammarSpec
from millstream.messages.sampling import verify_token_ids
from millstream.observe.ledger import Account, Ledger
from millstream.text.tokenizer import Tokenizer

INLINE_CHARS = 2000  # below this, encoding is cheaper than going to a thread
ITEM_CHARS = 100  # what one more item of a list costs, whatever its length
WORKERS = 4
LARGE_CHARS = 256 * 1024  # jobs above this share one worker, so that they cannot keep the others from working
SLICE_CHARS = 64 * 1024
# No tokenizer has a token of more characters than this that occurs in ordinary text. A prompt that would need longer ones
# to fit the context is refused before anything is spent on it.
MAX_CHARS_PER_TOKEN = 256
EMBEDS_NAMESPACE = "embeds:"  # how the namespace of a prompt of embeddings begins, and of no other

T = TypeVar("T")


def is_quick(size: int) -> bool:
    """Whether work on `size` characters is done before anything else could happen."""
    return size <= INLINE_CHARS


class PromptEncoder:
    """Text to ids, off the event loop where the text is long. What is in a thread stands in the ledger until it ends."""

    def __init__(self, tokenizer: Tokenizer, context_length: int, ledger: Ledger | None = None) -> None:
        self._tokenizer = tokenizer
        self._ledger = ledger or Ledger("entry")
        self._context_length = context_length
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tokenize")
        self._large_worker = ThreadPoolExecutor(1, thread_name_prefix="tokenize-large")

    async def off_loop(self, size: int, work: Callable[[], T], *, rid: str = "") -> T:
        """Run `work`, in a thread where `size` characters are many; `rid` names the request it is for, if there is one."""
        if is_quick(size):
            return work()
        job = (self._large_worker if size > LARGE_CHARS else self._workers).submit(work)
        account = self._ledger.open(rid)
        account.acquire("encoding", size)
        loop = asyncio.get_running_loop()

        def note_end(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(_end_job, account)

        # the end of the job and not of the wait: a client that leaves ends only the wait
        job.add_done_callback(note_end)
        return await asyncio.wrap_future(job)

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        param: str,
        rid: str = "",
        encode: Callable[[str], list[int]] | None = None,
    ) -> list[int]:
        """Encode a prompt, with `encode` if given. A large one that is far beyond the context is not encoded to its end.

        Raises:
            ContextLengthExceeded: it cannot fit.
        """
        self.check_size(len(text), param)
        gone = threading.Event()

        def work() -> list[int]:
            if len(text) > LARGE_CHARS:
                self._check_large(text, param, gone)
            if encode is not None:
                return encode(text)
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        try:
            return await self.off_loop(len(text), work, rid=rid)
        finally:
            gone.set()

    async def encode_all(self, texts: Sequence[str | list[int]], *, add_special_tokens: bool) -> list[list[int]]:
        """Encode texts that are no prompts and may be longer than the context; the caller has bounded them. Ids stay as they
        are."""
        gone = threading.Event()

        def work() -> list[list[int]]:
            encoded = []
            for text in texts:
                _check_wanted(gone)
                if isinstance(text, str):
                    encoded.append(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
                else:
                    encoded.append(text)
            return encoded

        try:
            return await self.off_loop(sum(map(len, texts)) + ITEM_CHARS * (len(texts) - 1), work)
        finally:
            gone.set()

    def check_size(self, size: int, param: str) -> None:
        """Refuse a prompt of `size` characters that cannot fit the context.

        Raises:
            ContextLengthExceeded: it cannot.
        """
        if size > self._context_length * MAX_CHARS_PER_TOKEN:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._context_length} tokens; "
                f"a prompt of {size} characters cannot fit.",
                param=param,
            )

    def _check_large(self, text: str, param: str, gone: threading.Event) -> None:
        """Refuse a text that is clearly beyond the context, at a cost that does not grow with it.

        Ids of slices are counted and thrown away. A cut changes the count by a few ids and there are few cuts, so twice the
        context is far on the safe side; what may fit is encoded as a whole, and only that counts. Vocabularies without bytes
        may have a single id for a word of any length, and parts of it may have many: there, words are counted.
        """
        count = 0
        has_bytes = self._tokenizer.has_byte_table
        for part in slices(text):
            _check_wanted(gone)
            count += len(self._tokenizer.encode(part, add_special_tokens=False) if has_bytes else part.split())
            if count > 2 * self._context_length:
                raise ContextLengthExceeded(
                    f"This model's maximum context length is {self._context_length} tokens; the prompt has more than {count}.",
                    param=param,
                )
        _check_wanted(gone)

    def close(self) -> None:
        """Stop the workers; what they are doing is abandoned."""
        for worker in (self._workers, self._large_worker):
            worker.shutdown(wait=False, cancel_futures=True)


def _end_job(account: Account) -> None:
    account.release("encoding", "done")
    account.settle("done")


class _Abandoned(Exception):
    """Nobody waits for the result of this job any more."""


def _check_wanted(gone: threading.Event) -> None:
    if gone.is_set():
        raise _Abandoned


def slices(text: str) -> Iterator[str]:
    """Cut `text` into parts of at most `SLICE_CHARS` characters, before a space or a line break where there is one."""
    start = 0
    while start < len(text):
        end = start + SLICE_CHARS
        if end < len(text):
            cut = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
            end = cut if cut > 0 else end
        yield text[start:end]
        start = end


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


def check_logprobs(params: LogprobParams, engine: EngineInfo) -> None:
    """Check what a request wants to be told, as far as its prompt has no part in it.

    Raises:
        RequestError: the executor tells no log probabilities, or a value is out of range.
    """
    if not engine.has_logprobs:
        raise RequestError(
            f"logprobs are asked for; the executor `{engine.executor}` has none.",
            param="logprobs",
            code="unsupported_parameter",
        )
    params.verify(engine.vocab_size)


def check_grammar(spec: GrammarSpec, engine: EngineInfo) -> None:
    """Check that the engine can hold a text to a grammar at all.

    Raises:
        RequestError: it cannot.
    """
    if not engine.has_grammars:
        raise RequestError(
            f"`{spec.param}` asks for a grammar; the executor `{engine.executor}` or this model's tokenizer allows none.",
            param=spec.param,
            code="unsupported_parameter",
        )


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
