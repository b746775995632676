"""Encoding of prompts: large ones are bounded in time and memory, stop when nobody waits, and leave room for small ones."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from millstream.entry.prompt_encoder import LARGE_CHARS, SLICE_CHARS, WORKERS, PromptEncoder, slices
from millstream.errors import ContextLengthExceeded
from millstream.messages import LedgerQuery
from millstream.observe.ledger import Ledger
from tests.support.asgi import run, until
from tests.support.engine import TOKENIZER

WORDS = "The quick brown fox. "


class WatchedTokenizer:
    """Counts what it encodes; with `hold`, large texts wait for `go` and tell when they have begun."""

    has_byte_table = True

    def __init__(self, *, hold: bool = False) -> None:
        self.sizes: list[int] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        if not hold:
            self.go.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.sizes.append(len(text))
        if len(text) > 10_000:
            self.began.release()
            assert self.go.wait(10)
        return TOKENIZER.encode(text, add_special_tokens=add_special_tokens)


def make(tokenizer: Any, context_length: int) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_length, Ledger("entry", strict=True))


def test_a_prompt_far_beyond_the_context_is_not_encoded_to_its_end() -> None:
    async def scenario() -> None:
        tokenizer = WatchedTokenizer()
        encoder = make(tokenizer, 20_000)
        with pytest.raises(ContextLengthExceeded) as caught:
            await encoder.encode(WORDS * 200_000, add_special_tokens=True, param="prompt")
        assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
        limit, count = map(int, re.findall(r"\d+", caught.value.message))  # agents read both, to know how much to cut
        assert limit == 20_000 < count
        assert max(tokenizer.sizes) <= SLICE_CHARS
        assert sum(tokenizer.sizes) < 1_000_000  # of 4,200,000
        encoder.close()

    run(scenario())


@pytest.mark.parametrize("text", [WORDS * 20_000, "a" * 400_000, " " * 400_000, "\n" * 300_000, "天" * 300_000])
def test_a_large_prompt_that_may_fit_has_exactly_the_ids_of_the_tokenizer(text: str) -> None:
    async def scenario() -> None:
        encoder = make(TOKENIZER, 1_000_000)
        assert len(text) > LARGE_CHARS
        assert await encoder.encode(text, add_special_tokens=True, param="prompt") == TOKENIZER.encode(text)
        encoder.close()

    run(scenario())


def test_slices_are_the_whole_text_and_end_between_words() -> None:
    for text in (WORDS * 10_000, "a" * 200_000, "", "a " * SLICE_CHARS, " " * 200_000, "x" * 1000 + "\n" + "y" * 100_000):
        parts = list(slices(text))
        assert "".join(parts) == text
        assert all(0 < len(part) <= SLICE_CHARS for part in parts)
    assert all(part.startswith(" ") for part in list(slices(WORDS * 10_000))[1:])


def test_a_client_that_left_stops_its_large_prompt_at_the_next_slice() -> None:
    async def scenario() -> None:
        tokenizer = WatchedTokenizer(hold=True)
        encoder = make(tokenizer, 1_000_000)
        jobs = [asyncio.create_task(encoder.encode(WORDS * 50_000, add_special_tokens=True, param="prompt")) for _ in range(3)]
        await asyncio.to_thread(tokenizer.began.acquire)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        tokenizer.go.set()
        await encoder.encode(WORDS * 13_000, add_special_tokens=True, param="prompt")  # comes after them in the same worker
        assert sum(size > 10_000 for size in tokenizer.sizes) == 1 + 5 + 1  # one slice of a gone one; slices and whole of ours
        encoder.close()

    run(scenario())


def test_large_prompts_leave_the_other_workers_to_small_ones() -> None:
    async def scenario() -> None:
        tokenizer = WatchedTokenizer(hold=True)
        encoder = make(tokenizer, 1_000_000)
        large = [
            asyncio.create_task(encoder.encode(WORDS * 20_000, add_special_tokens=True, param="prompt"))
            for _ in range(2 * WORKERS)
        ]
        await asyncio.to_thread(tokenizer.began.acquire)
        small = WORDS * 150
        assert await encoder.encode(small, add_special_tokens=True, param="prompt") == TOKENIZER.encode(small)
        assert not any(job.done() for job in large)
        for job in large:
            job.cancel()
        tokenizer.go.set()
        await asyncio.gather(*large, return_exceptions=True)
        encoder.close()

    run(scenario())


def test_a_job_stands_in_the_ledger_until_it_ends_also_where_its_client_has_left() -> None:
    async def scenario() -> None:
        tokenizer = WatchedTokenizer(hold=True)
        ledger = Ledger("entry", strict=True)
        encoder = PromptEncoder(tokenizer, 100_000, ledger)  # type: ignore[arg-type]
        text = WORDS * 1000
        waiting = asyncio.create_task(encoder.encode(text, add_special_tokens=False, param="prompt", rid="r"))
        await asyncio.to_thread(tokenizer.began.acquire)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        (held,) = ledger.book(LedgerQuery()).held
        assert (held.rid, held.kind, held.amount) == ("r", "encoding", len(text))
        tokenizer.go.set()
        await until(lambda: ledger.totals() == {})
        encoder.close()

    run(scenario())
