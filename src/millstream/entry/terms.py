"""Terms: what all requests of a call have in common, whichever API it came by: rid, deadline, priority and cache namespace.

Read by the adapters from a body's fields, once a call, before its prompts are looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from millstream.entry.deadline import before, resolve_deadline
from millstream.entry.http.exchange import Exchange
from millstream.entry.limits import MAX_RID_CHARS
from millstream.entry.priority import check_priority
from millstream.entry.sampling import cache_namespace
from millstream.entry.service import Service
from millstream.errors import RequestError
from millstream.messages import GenerateReqInput, LogprobParams, SamplingParams, Timing

T = TypeVar("T")


class CallFields(Protocol):
    """The fields of a body that are about the call as a whole."""

    rid: str | None
    timeout: float | None  # seconds
    priority: int
    cache_salt: str
    extra_key: str


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for every request of a call. Times are in seconds on `clock`, the service's."""

    rid: str
    deadline: float | None
    priority: int
    cache_namespace: str
    received: float
    clock: Callable[[], float]

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, and cancel it at the deadline.

        Raises:
            DeadlineExceeded: it had not ended by then.
        """
        return await before(self.deadline, self.received, self.clock, work)

    def request(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        number: int | None = None,
        add_special_tokens: bool = False,
        progress: bool = False,
        logprobs: LogprobParams | None = None,
        wants_embedding: bool = False,
    ) -> GenerateReqInput:
        """One request of the call, for a prompt of text or ids. `number` is its place where there are several."""
        return GenerateReqInput(
            rid=self.rid if number is None else f"{self.rid}-{number}",
            text=prompt if isinstance(prompt, str) else None,
            input_ids=None if isinstance(prompt, str) else prompt,
            add_special_tokens=add_special_tokens,
            sampling=sampling,
            cache_namespace=self.cache_namespace,
            priority=self.priority,
            deadline=self.deadline,
            progress=progress,
            logprobs=logprobs,
            wants_embedding=wants_embedding,
            timing=Timing(received=self.received, adapted=self.clock()),
        )


def read_terms(
    exchange: Exchange, service: Service, fields: CallFields, received: float, *, default_rid: str | None = None
) -> Terms:
    """The terms of a call that came at `received`.

    Raises:
        RequestError: a field is out of range, or is refused by this server.
    """
    check_priority(fields.priority, is_enabled=service.config.enable_priority_scheduling)
    return Terms(
        rid=resolve_rid(fields.rid, default_rid),
        deadline=resolve_deadline(exchange, fields.timeout, service.config.request_timeout_s, received),
        priority=fields.priority,
        cache_namespace=cache_namespace(fields.cache_salt, fields.extra_key),
        received=received,
        clock=service.clock,
    )


def resolve_rid(rid: str | None, default: str | None = None) -> str:
    """The client's rid, or `default`, or a new one.

    Raises:
        RequestError: it is empty, too long or not printable.
    """
    if rid is None:
        return default or uuid.uuid4().hex
    if not 1 <= len(rid) <= MAX_RID_CHARS or not rid.isascii() or not rid.isprintable():
        raise RequestError(f"rid must be 1 to {MAX_RID_CHARS} printable ASCII characters.", param="rid")
    return rid
