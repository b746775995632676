"""GET /metrics: what the whole server counts, for Prometheus."""

from __future__ import annotations

from millstream.entry.http.exchange import Exchange
from millstream.entry.measures import all_measures, model_name
from millstream.entry.service import Service
from millstream.observe.exposition import expose


async def metrics(exchange: Exchange, service: Service) -> None:
    """Counters, gauges and histograms of all processes, as Prometheus reads them, or OpenMetrics by `Accept`."""
    accept = exchange.header(b"accept") or b""
    body, content_type = expose(await all_measures(service), model_name(service), accept.decode("latin-1"))
    await exchange.send_text(body, content_type)
