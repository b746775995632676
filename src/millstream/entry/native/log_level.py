"""/log_level: what all processes log from, seen and changed while they run."""

from __future__ import annotations

from msgspec import Struct

from millstream.config import LogLevel
from millstream.entry.fields import FieldRules
from millstream.entry.http.exchange import Exchange
from millstream.entry.service import Service


class LogLevelRequest(Struct, kw_only=True):
    """POST /log_level."""

    level: LogLevel


LOG_LEVEL = FieldRules(honoured=LogLevelRequest, example={"level": "info"})


async def log_level(exchange: Exchange, service: Service) -> None:
    """The least severe level that is logged."""
    await exchange.send_json({"level": service.log_level})


async def set_log_level(exchange: Exchange, service: Service) -> None:
    """Log from another level on, in all processes and in those that replace them, until the server stops."""
    request = LOG_LEVEL.parse(await exchange.read_object())
    await service.set_log_level(request.level)
    await exchange.send_json({"level": service.log_level})
