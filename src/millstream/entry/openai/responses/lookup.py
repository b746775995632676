"""Finding, deleting and cancelling a response by its id, whichever entry worker keeps it.

The id says who that is. A worker that was replaced took its responses along: they are gone like those that had to make room.
"""

from __future__ import annotations

import asyncio
import contextlib

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.openai.responses.ids import keeper
from millstream.entry.openai.responses.store import ResponseStore
from millstream.entry.service import Service
from millstream.messages import ResponseRecord, ResponseReply, ResponseReq
from millstream.messages.workers import ResponseAction

END_WAIT_S = 1.5  # what is cancelled has ended by then, unless its client does not read; less than a worker waits for another
_SHOWN_CHARS = 100


async def find(
    service: Service,
    response_id: str,
    owner: str,
    *,
    action: ResponseAction = "read",
    param: str = "response_id",
    code: str = "response_not_found",
) -> ResponseRecord:
    """The response of `owner` with this id as it is now, or was just before it was deleted.

    Raises:
        RequestFailed: 404, there is none; `param` and `code` say so in the client's terms.
        EngineDeadError: the entry worker that keeps it does not answer.
    """
    number = keeper(response_id)
    record = None
    if number == service.entry:
        record = await apply_action(service.responses, response_id, owner, action)
    elif number in service.other_workers:
        record = await service.manager.questions.response(service.to_worker(number), response_id, owner, action)
    if record is None:
        raise not_found("response", response_id, param=param, code=code)
    return record


async def apply_action(store: ResponseStore, response_id: str, owner: str, action: ResponseAction) -> ResponseRecord | None:
    """Do with a response of this worker what was asked; None: `owner` has no such response here.

    One that is being made for a client that asked not to keep it can be cancelled, but not read.
    """
    if action == "cancel" and (live := store.live(response_id, owner)) is not None:
        live.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                await live.ended.wait()
        return live.last if live.ended.is_set() else live.look()
    record = store.find(response_id, owner)
    if action == "delete":
        store.delete(response_id, owner)
    return record


async def answer_worker(service: Service, message: ResponseReq) -> None:
    """Do what another entry worker asks for one of its clients."""
    record = await apply_action(service.responses, message.response_id, message.owner, message.action)
    service.to_worker(message.entry).send(ResponseReply(message.id, record))


def not_found(thing: str, its_id: str, *, param: str, code: str) -> RequestFailed:
    """The 404 for an id that leads nowhere."""
    shown = its_id[:_SHOWN_CHARS]
    message = f"No {thing} with the id `{shown}` is stored for this API key: it was not kept, was deleted, or had to make room."
    return RequestFailed(Failure(404, message, "invalid_request_error", param, code))
