"""Gate: how many calls are served at once, and how many bytes of their bodies are held. Owned by the app.

It stands before the body is read: refusing a call in a burst costs less than reading it, and memory is bounded whatever clients
send. What is counted is given back when the call has its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from millstream.errors import OverloadError


class Gate:
    """Counts within two limits. `retry_after_s` says what a refused client is told."""

    def __init__(self, *, max_calls: int, max_bytes: int, retry_after_s: Callable[[], int]) -> None:
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._retry_after_s = retry_after_s
        self.calls = 0
        self.bytes = 0

    def admit(self) -> Ticket:
        """A ticket for one more call, to be entered; gives the function that counts what is read of its body.

        Raises:
            OverloadError: one call too many.
        """
        if self.calls >= self._max_calls:
            self.refuse(f"{self.calls} requests are being served, the most this server takes")
        return Ticket(self)

    def hold(self, size: int) -> None:
        """Count bytes.

        Raises:
            OverloadError: they are too many.
        """
        if self.bytes + size > self._max_bytes:
            self.refuse(f"the bodies of the {self.calls} requests being served have {self.bytes} bytes together")
        self.bytes += size

    def refuse(self, why: str) -> NoReturn:
        """Raise the error that says `why`."""
        raise OverloadError(f"The server is busy: {why}. Try again later.", retry_after_s=self._retry_after_s())


class Ticket:
    """One call's share of the gate, from `with` to its end."""

    __slots__ = ("_bytes", "_gate")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._bytes = 0

    def __enter__(self) -> Callable[[int], None]:
        self._gate.calls += 1
        return self._hold

    def __exit__(self, *_: object) -> None:
        self._gate.calls -= 1
        self._gate.bytes -= self._bytes

    def _hold(self, size: int) -> None:
        self._gate.hold(size)
        self._bytes += size
