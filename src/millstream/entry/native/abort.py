"""POST /abort_request: end requests by their rid, from any connection. SGLang's route; the answer says what was aborted."""

from __future__ import annotations

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.fields import check_count
from millstream.entry.http.auth import forbidden
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.protocol import ABORT, AbortRequest
from millstream.entry.service import Service
from millstream.errors import RequestError

MAX_RIDS = 1024  # in one call: with `prefix` each is compared with every live rid


async def abort_request(exchange: Exchange, service: Service) -> None:
    """Abort the requests or calls with exactly these rids, those that begin with them, or all."""
    request = ABORT.parse(await exchange.read_object())
    if ABORT.needs_admin(request) and not exchange.is_admin:
        raise RequestFailed(forbidden())  # who names no rid ends the requests of others
    await exchange.send_json(await abort(service, request))


async def abort(service: Service, request: AbortRequest) -> dict[str, list[str]]:
    """Do so; returns the rids that are aborted and, where a list was asked for, those of it that were not live.

    Raises:
        RequestError: no rid is named.
        RequestFailed: nothing with such a rid is live.
    """
    if request.abort_all:
        if request.rid:
            raise RequestError("rid and abort_all exclude each other.", param="rid")
        return {"aborted": await _abort(service, "", is_prefix=True)}
    rids = _rids(request)
    found = {rid: await _abort(service, rid, is_prefix=request.prefix) for rid in rids}
    aborted = list(dict.fromkeys(each for rid in found for each in found[rid]))
    not_found = [rid for rid in found if not found[rid]]
    if not aborted:
        shown = f"`{not_found[0]}`" if len(rids) == 1 else f"one of the {len(rids)}"
        message = f"No live request has the rid {shown}." if not request.prefix else f"No live rid begins with {shown}."
        raise RequestFailed(Failure(404, message[:1000], "invalid_request_error", "rid", "rid_not_found"))
    return {"aborted": aborted, "not_found": not_found} if isinstance(request.rid, list) else {"aborted": aborted}


def _rids(request: AbortRequest) -> list[str]:
    rids = request.rid if isinstance(request.rid, list) else [request.rid]
    if not rids or not all(rids):
        raise RequestError("rid is empty; to abort everything, send `abort_all`: true.", param="rid")
    check_count("rid", len(rids), MAX_RIDS)
    return rids


async def _abort(service: Service, rid: str, *, is_prefix: bool) -> list[str]:
    """Abort here and, where there are other workers, with them."""
    manager = service.started
    if manager is None:
        return []
    aborted = manager.abort_prefix(rid) if is_prefix else manager.abort(rid)
    if service.config.entry_workers > 1 and (is_prefix or not aborted):
        aborted += await manager.questions.abort_others([] if is_prefix else [rid], rid if is_prefix else None)
    return aborted
