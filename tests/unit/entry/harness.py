"""A TokenizerManager over a stand-in for the engine, and requests for it."""

from __future__ import annotations

from typing import Any

from millstream.entry.generation import Origin
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.messages import (
    GenerateReqInput,
    SamplingParams,
    Timing,
)
from millstream.observe.ledger import Ledger
from tests.support.engine import TOKENIZER, FakeEngine, engine_info

ORIGIN = Origin(api="test", model="tiny", prompt_param="prompt")


def make(entry: int = 0) -> tuple[TokenizerManager, FakeEngine]:
    engine = FakeEngine()
    ledger = Ledger("entry", strict=True)
    manager = TokenizerManager(
        tokenizer=TOKENIZER, to_scheduler=engine, engine=engine_info(), entry=entry, ledger=ledger, new_seed=lambda: 77
    )
    engine.handle = manager.handle
    return manager, engine


def request(rid: str = "r", **more: Any) -> GenerateReqInput:
    more = {"input_ids": [5, 6, 7]} | more if "text" not in more else more
    sampling = more.pop("sampling", SamplingParams())
    return GenerateReqInput(rid=rid, sampling=sampling, timing=Timing(received=1.0), **more)


async def submit(manager: TokenizerManager, *requests: GenerateReqInput, rid: str = "r", origin: Origin = ORIGIN) -> Any:
    return await manager.generate_request(rid, requests or (request(),), origin)
