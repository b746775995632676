"""Gate: how many calls are served at once, and how many bytes of their bodies are held. Owned by the app.

It stands before the body is read: refusing a call in a burst costs less than reading it, and memory is bounded whatever clients
send. What is counted is given back when the call has its answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from millstream.errors import OverloadError


class Gate:
    """Counts within two limits. `retry_after_s` says what a refused client is told."""

    def __init__(self, *, max_calls: int, max_bytes: int, retry_after_s: Callable[[], int]) -> None:
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._retry_after_s = retry_after_s
        self.calls = 0
        self.bytes = 0

    @contextlib.contextmanager
    def admit(self) -> Iterator[Callable[[int], None]]:
        """Count a call while it lasts; gives the function that counts what is read of its body.

        Raises:
            OverloadError: one call too many or, from that function, one byte.
        """
        if self.calls >= self._max_calls:
            self._refuse(f"{self.calls} requests are being served, the most this server takes")
        self.calls += 1
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self.bytes + size > self._max_bytes:
                self._refuse(f"the bodies of the {self.calls} requests being served have {self.bytes} bytes together")
            held += size
            self.bytes += size

        try:
            yield hold
        finally:
            self.calls -= 1
            self.bytes -= held

    def _refuse(self, why: str) -> None:
        raise OverloadError(f"The server is busy: {why}. Try again later.", retry_after_s=self._retry_after_s())
