"""Log probabilities of the embedded model through the scheduler: not a bit depends on how the scheduler runs a request."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millstream.execution.native.executor import NativeExecutor
from millstream.messages import RowDetails
from millstream.messages.details import LogprobParams
from millstream.scheduler.speculation import SpeculationOptions
from tests.unit.scheduler.harness import Desk

WORDS = random.Random(9).choices(range(5, 49000), k=60)
PROMPTS = [WORDS[:50] + [number] * 20 for number in (300, 301, 302)]  # the first 48 are shared pages
ASKED = [LogprobParams(top=3, prompt_start=0), LogprobParams(token_ids=(7,), prompt_start=55), LogprobParams(top=1)]
HOW: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}, {"presence_penalty": 0.7}]
NEW = 24
Told = tuple[list[int], RowDetails | None]


def submit(at: Desk, number: int, rid: str | None = None, call: str = "") -> None:
    at.submit(
        rid or f"r{number}",
        PROMPTS[number],
        max_new=NEW,
        seed=11 + number,
        logprobs=ASKED[number],
        call=call,
        ignore_eos=True,
        **HOW[number],
    )


def told(at: Desk, rid: str) -> Told:
    return at.tokens(rid), at.details(rid)


@pytest.fixture(scope="module")
def alone(native_embedded: NativeExecutor) -> list[Told]:
    """Each on a scheduler of its own, its prompt in one chunk."""
    made = []
    for number in range(3):
        at = Desk(native_embedded, context_length=512, chunked_prefill_size=256)
        submit(at, number)
        at.run()
        made.append(told(at, f"r{number}"))
    return made


@pytest.mark.parametrize("chunk", [5, 33, 256])
@pytest.mark.parametrize("drafts", [0, 4])
def test_chunks_company_and_drafts(native_embedded: NativeExecutor, alone: list[Told], chunk: int, drafts: int) -> None:
    speculation = SpeculationOptions(num_draft_tokens=drafts, shortest_match=1)
    at = Desk(native_embedded, context_length=512, chunked_prefill_size=chunk, speculation=speculation)
    for number in range(3):
        submit(at, number)
    at.run()
    assert [told(at, f"r{number}") for number in range(3)] == alone


def test_prefixes_that_are_known(native_embedded: NativeExecutor, alone: list[Told]) -> None:
    at = Desk(native_embedded, context_length=512)
    for number in (2, 1, 0, 2, 1):
        rid = f"{number}-{len(at.accepted())}"
        submit(at, number, rid)
        at.run()
        assert told(at, rid) == alone[number]
        at.stats()
    assert [at.rows(rid)[-1].usage.cached_tokens for rid in at.accepted()] == [0, 48, 0, 64, 48]


def test_choices_of_one_call(native_embedded: NativeExecutor, alone: list[Told]) -> None:
    at = Desk(native_embedded, context_length=512)
    for choice in range(3):
        submit(at, 0, f"c{choice}", call="c")
    at.run()
    assert [told(at, f"c{choice}") for choice in range(3)] == [alone[0]] * 3
    assert [at.rows(f"c{choice}")[-1].usage.cached_tokens for choice in range(3)] == [0, 69, 69]


def test_retractions_and_pauses(native_embedded: NativeExecutor, alone: list[Told]) -> None:
    at = Desk(native_embedded, context_length=160, num_pages=11, chunked_prefill_size=64)
    for number in range(3):
        submit(at, number)
    for _ in range(6):
        at.step()
    at.pause("r1")
    for _ in range(9):
        at.step()
    at.resume("r1")
    at.run()
    assert at.stats().retractions > 0
    assert [told(at, f"r{number}") for number in range(3)] == alone
