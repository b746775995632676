"""Pulse: a child's signs of life to its supervisor, from a thread of its own. Started by the child once it is ready.

The thread shows that the process runs at all; what the process's loop notes here shows that it gets on. It judges nothing.
"""

from __future__ import annotations

import contextlib
import threading

from millstream.ipc.control import ControlLink
from millstream.messages import Heartbeat

BEAT_S = 1.0


class Pulse:
    """`progress` counts what was got done; the loop that owns it calls `idle` and `work`, or counts by itself."""

    def __init__(self, control: ControlLink, *, beat_s: float = BEAT_S) -> None:
        self.progress = 0
        self._is_busy = True
        self._control = control
        self._beat_s = beat_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def idle(self) -> None:
        """All is done: the loop waits for something to do."""
        self.progress += 1
        self._is_busy = False

    def work(self) -> None:
        """There is something to do."""
        self._is_busy = True

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the link is closed: it is over
            while not self._stopped.wait(self._beat_s):
                self._control.note(Heartbeat(self.progress, self._is_busy))
