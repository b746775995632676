"""Records of requests that somebody may see, live and recent, of this entry worker and of all of them."""

from __future__ import annotations

import asyncio

from millstream.entry.ending import record_of
from millstream.entry.service import Service
from millstream.errors import EngineDeadError
from millstream.messages import RequestRecord, RequestsReply, RequestsReq


async def find_records(service: Service, owner: str | None, name: str = "") -> list[RequestRecord]:
    """The requests of `owner` (None: of everybody), with `name` those that go by it: live ones first, the newest
    first. A worker that does not answer is left out.

    Raises:
        EngineDeadError: the server is still loading.
    """
    manager = service.manager
    found = own_records(service, owner, name)

    async def ask(number: int) -> list[RequestRecord]:
        try:
            return await manager.questions.requests(service.to_worker(number), owner, name)
        except EngineDeadError:
            return []

    for records in await asyncio.gather(*map(ask, service.other_workers)):
        found += records
    return sorted(found, key=lambda record: (record.state == "ended", -record.received_at))


def own_records(service: Service, owner: str | None, name: str = "") -> list[RequestRecord]:
    """Those of this worker, in no order."""
    manager, now = service.started, service.clock()
    if manager is None:
        return []
    live = (*manager.registry, *manager.endings.unread.values())
    records = [record_of(state, generation, now) for state, generation in live if not generation.origin.is_probe]
    return [
        record for record in (*records, *service.recent) if owner in (None, record.owner) and (not name or record.goes_by(name))
    ]


def answer_worker(service: Service, message: RequestsReq) -> None:
    """Tell another entry worker of the requests of this one."""
    service.to_worker(message.entry).send(RequestsReply(message.id, own_records(service, message.owner, message.name)))
