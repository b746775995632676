"""A TokenizerManager over a stand-in for the engine, and requests for it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millstream.entry.generation import Origin
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.messages import GenerateReqInput, SamplingParams, Timing, TokenizedGenerateReqInput
from millstream.observe.ledger import Ledger
from tests.support.engine import TOKENIZER, FakeEngine, engine_info, hold

ORIGIN = Origin(api="test", model="tiny", prompt_param="prompt")


def make(entry: int = 0, **facts: Any) -> tuple[TokenizerManager, FakeEngine]:
    engine = FakeEngine()
    ledger = Ledger("entry", strict=True)
    manager = TokenizerManager(
        tokenizer=TOKENIZER,
        to_scheduler=engine,
        engine=msgspec.structs.replace(engine_info(), **facts),
        entry=entry,
        ledger=ledger,
        new_seed=lambda: 77,
    )
    engine.handle = manager.handle
    return manager, engine


def request(rid: str = "r", **more: Any) -> GenerateReqInput:
    more = {"input_ids": [5, 6, 7]} | more if "text" not in more else more
    sampling = more.pop("sampling", SamplingParams())
    return GenerateReqInput(rid=rid, sampling=sampling, timing=Timing(received=1.0), **more)


async def submit(manager: TokenizerManager, *requests: GenerateReqInput, rid: str = "r", origin: Origin = ORIGIN) -> Any:
    return await manager.generate_request(rid, requests or (request(),), origin)


async def submit_admitted(manager: TokenizerManager, engine: FakeEngine, *requests: GenerateReqInput, rid: str = "r") -> Any:
    """A generation that is under way, of which nothing has come yet."""
    engine.answer = lambda sent: engine.accept(sent.rid)
    return await submit(manager, *requests, rid=rid)


async def submit_held(manager: TokenizerManager, engine: FakeEngine, *requests: GenerateReqInput) -> asyncio.Task[Any]:
    """A call whose requests are sent and wait for their verdicts."""
    engine.answer = hold
    num_sent = len(engine.requests)
    task = asyncio.create_task(submit(manager, *requests))
    await engine.wait_sent(TokenizedGenerateReqInput, num_sent + max(1, len(requests)))
    return task
