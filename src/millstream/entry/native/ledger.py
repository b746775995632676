"""GET /debug/ledger: what all processes hold on behalf of requests, asked of each in turn, in order with the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from millstream.entry.http.exchange import Exchange
from millstream.entry.query import read_query
from millstream.entry.service import Service
from millstream.entry.survey import survey
from millstream.messages import Book, LedgerQuery
from millstream.messages.ledger import MAX_HELD


async def debug_ledger(exchange: Exchange, service: Service) -> None:
    """Every entry, or with `?rid=` those of one request; totals, releases and mismatches since the start."""
    query = read_query(exchange, "rid")
    found = await survey(service, LedgerQuery(query.get("rid", "")))
    await exchange.send_json({**_merged(list(found.books())), "mismatches": found.ledger_mismatches})


def _merged(books: Sequence[Book]) -> dict[str, Any]:
    """The books of all processes as one; together they list no more than one may."""
    held = [each for book in books for each in book.held]
    totals: Counter[str] = Counter()
    released: dict[str, Counter[str]] = {}
    for book in books:
        totals.update(book.totals)
        for kind, causes in book.released.items():
            released.setdefault(kind, Counter()).update(causes)
    return {
        "held": held[:MAX_HELD],
        "left_out": sum(book.left_out for book in books) + len(held[MAX_HELD:]),
        "totals": totals,
        "released": released,
    }
