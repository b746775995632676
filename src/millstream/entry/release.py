"""Whatever becomes of an answer, its generation is released, with the word for what still runs by then.

`admitted` is around the making of one answer in every adapter; those that hand a generation on use `release_after`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from millstream.entry.failure import RequestFailed
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import ClientGone
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.messages import GenerateReqInput
from millstream.messages.finish import AbortCause


@contextmanager
def release_after(manager: TokenizerManager, generation: Generation) -> Iterator[None]:
    """Release `generation` at the end of the block. A request that still runs then has lost its client, has a failed choice
    beside it, or is the victim of a fault of ours.
    """
    cause: AbortCause = "engine_error"
    try:
        yield
        cause = "engine_error" if generation.is_broken else "aborted"
    except RequestFailed:
        cause = "aborted"
        raise
    except (ClientGone, asyncio.CancelledError, GeneratorExit):
        cause = "client_gone"
        raise
    finally:
        manager.release(generation, cause)


@asynccontextmanager
async def admitted(
    manager: TokenizerManager, rid: str, requests: Sequence[GenerateReqInput], origin: Origin
) -> AsyncIterator[Generation]:
    """The generation of a call, from its admission to its release: nothing can come between the two.

    Raises:
        MillstreamError, RequestFailed: as `TokenizerManager.generate_request`.
    """
    generation = await manager.generate_request(rid, requests, origin)
    with release_after(manager, generation):
        yield generation
