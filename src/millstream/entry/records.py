"""Records of requests that somebody may see, live and recent, of this entry worker and of all of them."""

from __future__ import annotations

import asyncio

import msgspec

from millstream.entry.ending import record_of
from millstream.entry.questions import Questions
from millstream.entry.service import Service
from millstream.entry.state import keep_own_stamps
from millstream.errors import EngineDeadError
from millstream.messages import LiveRequest, RequestRecord, RequestsReply, RequestsReq


async def find_records(service: Service, owner: str | None, name: str = "") -> list[RequestRecord]:
    """The requests of `owner` (None: of everybody), with `name` those that go by it: live ones first, the newest
    first. A worker that does not answer is left out.

    Raises:
        EngineDeadError: the server is still loading.
    """
    manager = service.started or service.manager
    found = own_records(service, owner, name)

    async def ask(number: int) -> list[RequestRecord]:
        try:
            return await manager.questions.requests(service.to_worker(number), owner, name)
        except EngineDeadError:
            return []

    for records in await asyncio.gather(*map(ask, service.other_workers)):
        found += records
    if any(record.state in ("queued", "running") for record in found):
        live = await _journeys(manager.questions)
        found = [record if record.rid not in live else with_live(record, live[record.rid]) for record in found]
    return sorted(found, key=lambda record: (record.state == "ended", -record.received_at))


async def _journeys(questions: Questions) -> dict[str, LiveRequest]:
    try:
        return await questions.journeys()
    except EngineDeadError:  # the entry's own view is better than none
        return {}


def with_live(record: RequestRecord, live: LiveRequest) -> RequestRecord:
    """A record with what the scheduler knows of the request; unless it has ended, and the rid is another's by now."""
    if record.state not in ("queued", "running"):
        return record
    keep_own_stamps(live.timing, record.timing)
    return msgspec.structs.replace(record, state=live.state, timing=live.timing, usage=live.usage)


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
