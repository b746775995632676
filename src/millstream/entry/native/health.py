"""GET /health_generate: whether tokens can be made, shown by a token. For probes that want more than /health can say.

A server that is busy needs no proof: a token of anybody's is one, and so is a step of the engine while it reads long prompts.
Only where neither is seen a token is made for the probe, through all processes; one at a time, for all probes there are.
"""

from __future__ import annotations

import asyncio
import uuid

from millstream.entry.failure import RequestFailed, failure_of_unasked_end
from millstream.entry.generation import Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.query import read_seconds
from millstream.entry.release import admitted
from millstream.entry.service import Service
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.entry.whole import collect
from millstream.errors import EngineDeadError, MillstreamError, OverloadError
from millstream.messages import GenerateReqInput, SamplingParams, Timing

FRESH_S = 1.0  # a token that came so lately is proof
LIMIT_S = 20.0  # without a sign of life: as SGLang's probe
MAX_LIMIT_S = 600.0
LOOK_EVERY_S = 0.5
RID_PREFIX = "HEALTH_CHECK_"  # SGLang's
PROMPT = [0]  # every vocabulary has it


async def health_generate(exchange: Exchange, service: Service) -> None:
    """200 where tokens are made, 503 where not; `?timeout=` is for how many seconds a sign of life may be missing."""
    limit_s = read_seconds(exchange, "timeout", default=LIMIT_S, most=MAX_LIMIT_S)
    manager = service.manager
    if service.clock() - manager.tokens_at > FRESH_S:
        await exchange.while_connected(_wait(service, manager, limit_s))
    await exchange.send_json({"status": "ok"})


async def _wait(service: Service, manager: TokenizerManager, limit_s: float) -> None:
    """Wait for the proof that is under way, or a new one.

    Raises:
        EngineDeadError: it does not come within `limit_s` seconds, or cannot.
    """
    if service.proof is None or service.proof.done():
        service.proof = asyncio.create_task(_prove(service, manager))
    proof = service.proof
    await asyncio.wait((proof,), timeout=limit_s)
    if not proof.done():
        raise EngineDeadError(f"No token was made for {limit_s:g} s, and nobody computes.", code="no_sign_of_life")
    if (why := proof.result()) is not None:
        raise EngineDeadError(why, code="no_sign_of_life")


async def _prove(service: Service, manager: TokenizerManager) -> str | None:
    """See to a sign of life within `MAX_LIMIT_S`; returns why there is none, where that is known earlier."""
    started = service.clock()
    token = asyncio.create_task(_make_token(service, manager, started))
    steps = asyncio.create_task(_sees_steps(manager))
    try:
        while service.clock() - started < MAX_LIMIT_S:
            if pending := [task for task in (token, steps) if not task.done()]:
                await asyncio.wait(pending, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(LOOK_EVERY_S)
            if manager.tokens_at >= started or any(task.done() and task.result() for task in (token, steps)):
                return None
    except EngineDeadError as error:
        return error.message
    finally:
        token.cancel()
        steps.cancel()
    return "No token was made."


async def _sees_steps(manager: TokenizerManager) -> bool:
    """Wait until the engine has ended a step, as scheduler and detokenizer say; False: they do not answer."""
    first: int | None = None
    try:
        while True:
            num_steps = (await manager.questions.stats(MAX_LIMIT_S)).steps
            if first not in (None, num_steps):
                return True
            first = num_steps
            await asyncio.sleep(LOOK_EVERY_S)
    except EngineDeadError:
        return False


async def _make_token(service: Service, manager: TokenizerManager, now: float) -> bool:
    """Have one token made; False: the server is full, which says nothing.

    Raises:
        EngineDeadError: that failed, and why.
    """
    request = GenerateReqInput(
        rid=f"{RID_PREFIX}{uuid.uuid4().hex}",
        input_ids=PROMPT,
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        deadline=now + MAX_LIMIT_S,
        is_probe=True,
        timing=Timing(received=now, adapted=now),
    )
    origin = Origin(api="health_generate", model=service.text.names[0], prompt_param="input_ids", is_probe=True)
    try:
        async with admitted(manager, request.rid, [request], origin) as generation:
            await collect(generation, failure_of_unasked_end)
    except OverloadError:
        return False
    except MillstreamError as error:
        raise EngineDeadError(error.message) from None
    except RequestFailed as error:
        if error.failure.status == OverloadError.status:
            return False
        raise EngineDeadError(error.failure.message) from None
    return True
