"""Survey: the whole server as it is now, whichever entry worker was asked. For the routes that show it.

Scheduler and detokenizer are asked first, in order with their data, then the other workers: whatever the first two had sent by
then, each worker reads before it answers. So what has ended for the engine has ended for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from millstream.entry.service import Service
from millstream.errors import EngineDeadError
from millstream.ipc.address import entry_name
from millstream.messages import Book, LedgerQuery, StatsReply, WorkerReport


@dataclass(frozen=True)
class Survey:
    """What scheduler and detokenizer say, and every entry worker by its number; None for one that does not answer."""

    stats: StatsReply
    workers: dict[int, WorkerReport | None]

    @property
    def reports(self) -> list[WorkerReport]:
        """Of the workers that answered."""
        return [report for report in self.workers.values() if report is not None]

    @property
    def ledger_mismatches(self) -> int:
        """Of all processes."""
        return self.stats.ledger_mismatches + sum(report.ledger_mismatches for report in self.reports)

    def books(self) -> Iterator[Book]:
        """Of all processes, where the ledger was asked for.

        Raises:
            EngineDeadError: a worker does not answer, and nobody knows what it holds.
        """
        for number, report in self.workers.items():
            if report is None or report.book is None:
                raise EngineDeadError(f"The {entry_name(number)} process does not answer.")
            yield report.book
        yield from self.stats.books


async def survey(service: Service, ledger: LedgerQuery | None = None) -> Survey:
    """Ask everybody; with `ledger`, for their books too.

    Raises:
        EngineDeadError: the server cannot work now, or scheduler or detokenizer does not answer.
    """
    manager = service.manager
    stats = await manager.questions.stats(ledger=ledger)
    workers: dict[int, WorkerReport | None] = {service.entry: service.report(ledger)}
    others = service.other_workers

    async def ask(number: int) -> WorkerReport | None:
        try:
            return await manager.questions.worker(service.to_worker(number), ledger)
        except EngineDeadError:
            return None

    workers.update(zip(others, await asyncio.gather(*map(ask, others)), strict=True))
    return Survey(stats, dict(sorted(workers.items())))
