"""Verdicts: whether new requests were admitted, collected for each entry worker until they are sent. Owned by the scheduler."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.errors import MillstreamError
from millstream.ipc.channel import Sender
from millstream.messages import AdmissionOutput
from millstream.scheduler import admission


class Verdicts:
    """What was decided since the last `send`. `to_entry` gives the way to a worker by its number."""

    def __init__(self, to_entry: Callable[[int], Sender]) -> None:
        self._to_entry = to_entry
        self._by_entry: dict[int, AdmissionOutput] = {}

    def accept(self, entry: int, slot: int) -> None:
        """The request is admitted."""
        self._for(entry).accepted.append(slot)

    def reject(self, entry: int, rid: str, slot: int, error: MillstreamError) -> None:
        """The request is not admitted, and why."""
        self._for(entry).rejected.append(admission.rejection(rid, slot, error))

    def forget_entry(self, entry: int) -> None:
        """The worker is gone."""
        self._by_entry.pop(entry, None)

    def send(self, retry_after_s: Callable[[], int]) -> None:
        """Send all there are, with what somebody refused now should wait."""
        if not self._by_entry:
            return
        seconds = retry_after_s()
        for entry, verdicts in self._by_entry.items():
            self._to_entry(entry).send(msgspec.structs.replace(verdicts, retry_after_s=seconds))
        self._by_entry = {}

    def _for(self, entry: int) -> AdmissionOutput:
        return self._by_entry.setdefault(entry, AdmissionOutput([], []))
