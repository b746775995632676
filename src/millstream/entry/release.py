"""release_after: whatever becomes of an answer, its generation is released, with the word for what still runs by then.

Used by every adapter around the making of one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.entry.failure import RequestFailed
from millstream.entry.generation import Generation
from millstream.entry.http.exchange import ClientGone
from millstream.entry.tokenizer_manager import TokenizerManager
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
