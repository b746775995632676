"""ResponseStore: the responses that this entry worker has made and those it makes just now. Owned by the `Service`.

What has ended is kept encoded, so that what is counted is what it takes; the one that was not used for longest makes room. Each
is complete in itself, with the conversation before it: deleting or losing one touches no other. Owners are digests of API keys,
"" without keys; whoever asks names one, and gets nothing of another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.messages import ResponseRecord


class Live:
    """A response that has not ended: how to see it, and how to end it."""

    def __init__(self, owner: str, look: Callable[[], ResponseRecord], stop: Callable[[], None], *, is_kept: bool) -> None:
        self.owner = owner
        self.look = look
        self.stop = stop
        self.is_kept = is_kept  # once it has ended; until then it can be seen only where it will be
        self.ended = asyncio.Event()
        self.last: ResponseRecord | None = None  # what it was when it ended; None: its client left, and it came to nothing


class ResponseStore:
    """At most `max_count` ended responses and `max_bytes` of them. Those that have not ended are bounded by the engine."""

    def __init__(self, *, max_count: int, max_bytes: int) -> None:
        self.bytes = 0
        self.evicted = 0  # since the start: had to make room, or were larger than all of it
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: dict[str, ResponseRecord] = {}  # by id; the one not used for longest is first
        self._live: dict[str, Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, response_id: str, live: Live) -> None:
        """A response is being made."""
        self._live[response_id] = live

    def end(self, response_id: str, record: ResponseRecord | None) -> None:
        """A response has ended, as `record`; None: it came to nothing. It is kept where it was to be."""
        live = self._live.pop(response_id)
        live.last = record
        if record is not None and live.is_kept:
            self._keep(response_id, record)
        live.ended.set()

    def live(self, response_id: str, owner: str) -> Live | None:
        """A response of `owner` that has not ended."""
        live = self._live.get(response_id)
        return live if live is not None and live.owner == owner else None

    def find(self, response_id: str, owner: str) -> ResponseRecord | None:
        """A response of `owner`, ended or not, as it is now."""
        live = self.live(response_id, owner)
        if live is not None:
            return live.look() if live.is_kept else None
        record = self._kept.get(response_id)
        if record is None or record.owner != owner:
            return None
        self._kept[response_id] = self._kept.pop(response_id)
        return record

    def delete(self, response_id: str, owner: str) -> bool:
        """Forget a response of `owner`; one that has not ended is ended. Returns whether there was one."""
        live = self.live(response_id, owner)
        if live is not None:
            was_kept, live.is_kept = live.is_kept, False
            live.stop()
            return was_kept
        record = self._kept.get(response_id)
        if record is None or record.owner != owner:
            return False
        self._drop(response_id)
        return True

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` that no connection waits for. It must not raise."""
        task = asyncio.create_task(work)
        self._tasks.add(task)  # a loop keeps no task alive
        task.add_done_callback(self._tasks.discard)

    def _keep(self, response_id: str, record: ResponseRecord) -> None:
        if record.size > self._max_bytes:  # all others would make room for nothing
            self.evicted += 1
            return
        self._kept[response_id] = record
        self.bytes += record.size
        while len(self._kept) > self._max_count or self.bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))
            self.evicted += 1

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._kept.pop(response_id).size
