"""PromptEncoder: text to ids, and other work on prompts, in worker threads where it is long: the event loop goes on serving.

One of each entry worker, called by adapters and by `CallTokenizer`. A job whose client has left stops at its next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from millstream.errors import ContextLengthExceeded
from millstream.observe.ledger import Account, Ledger
from millstream.text.tokenizer import Tokenizer

INLINE_CHARS = 2000  # below this, encoding is cheaper than going to a thread
ITEM_CHARS = 100  # what one more item of a list costs, whatever its length
WORKERS = 4
LARGE_CHARS = 256 * 1024  # jobs above this share one worker, so that they cannot keep the others from working
SLICE_CHARS = 64 * 1024
_SPACES = re.compile(r"[ \t\r\n]+")
# No tokenizer has a token of more characters than this that occurs in ordinary text. A prompt that would need longer ones
# to fit the context is refused before anything is spent on it.
MAX_CHARS_PER_TOKEN = 256

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
            count += len(self._tokenizer.encode(part, add_special_tokens=False)) if has_bytes else _num_words(part)
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


def _num_words(text: str) -> int:
    """How many words any vocabulary has ids for, at least: what stands between plain spaces and is not all marks and controls,
    which a tokenizer may drop.
    """
    return sum(any(map(str.isalnum, word)) for word in _SPACES.split(text))


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
