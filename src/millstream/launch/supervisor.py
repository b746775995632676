"""The supervisor: starts the processes, waits for READY, death, time-out or a signal in one place, and stops everything.

It owns the listening socket, the socket directory and, through its crew, the processes; no request. Its wait is the only one:
what is to be done then is decided by the crew, and after a signal here.
"""

from __future__ import annotations

import logging
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from types import FrameType

from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.ipc.address import make_socket_directory
from millstream.launch.crew import Crew
from millstream.launch.listen import bind, url_of
from millstream.launch.spawn import Child
from millstream.messages import EngineInfo, Shutdown

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0  # what a child gets to exit after it was told to, drain not included


class Supervisor:
    """One server's processes, from start to the last file removed. `run` is its whole life: call it once, in the main thread.

    It takes SIGINT and SIGTERM for itself.
    """

    def __init__(self, config: ServerConfig, on_ready: Callable[[str, EngineInfo], None]) -> None:
        self._config = config
        self._on_ready = on_ready
        self._stop_signals = 0
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; returns after a clean stop.

        Raises:
            StartupError: the address cannot be bound, a process did not become ready, or one died too often; everything is
                stopped and removed by then.
        """
        listener = bind(self._config.host, self._config.port)
        directory = make_socket_directory(tempfile.gettempdir())
        self._watch_signals()
        self._crew = Crew(self._config, directory, listener, self._selector)
        shutdown = Shutdown(has_failed=True)
        try:
            self._crew.start()
            self._serve(url_of(listener))
            shutdown = Shutdown(self._config.drain_timeout_s)
        finally:
            listener.close()  # ours: the workers have theirs as long as they drain
            self._stop_all(shutdown)
            shutil.rmtree(directory, ignore_errors=True)

    def _serve(self, url: str) -> None:
        crew, announced = self._crew, False
        while not self._stop_signals:
            self._wait(crew.next_deadline())
            crew.tend(time.monotonic())
            if crew.has_started and not announced:
                announced = True
                assert crew.engine is not None  # the scheduler's Ready carries it
                self._on_ready(url, crew.engine)

    def _wait(self, deadline: float) -> None:
        """Wait once for any child's message or death, a signal, or the deadline; take what came."""
        for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
            if key.fileobj is self._wakeup:
                self._wakeup.recv(64)
            else:
                self._crew.hear(key.data, time.monotonic())

    def _stop_all(self, shutdown: Shutdown) -> None:
        """Stop the entry workers first, which drain while the others still work; then the others; then who did not listen."""
        crew = self._crew
        crew.drain()
        self._stop_group(list(crew.children("entry")), shutdown)
        self._stop_group([child for child in crew.children() if child.kind != "entry"], Shutdown())
        crew.close()
        self._selector.close()
        self._wakeup.close()
        self._wakeup_writer.close()

    def _stop_group(self, group: list[Child], shutdown: Shutdown) -> None:
        drain_s = shutdown.drain_s
        for child in group:
            if child.phase in ("STARTING", "READY"):
                # a child that is still loading has nothing to drain and may not read its link for a long time
                starting = child.phase == "STARTING" and child.kind != "entry"
                child.move("DRAINING")
                self._crew.publish()
                child.link.send(shutdown)
                if starting:
                    child.process.terminate()
        deadline = time.monotonic() + drain_s + STOP_GRACE_S
        while any(child.phase == "DRAINING" for child in group) and time.monotonic() < deadline:
            if self._stop_signals > 1:  # asked again: no more patience, with nobody
                break
            if drain_s and self._crew.has_started:
                self._wait(min(deadline, self._crew.next_deadline()))
                self._tend_draining()
            else:
                self._wait(deadline)
        for child in group:
            if child.phase == "DRAINING":
                log.warning("%s did not stop in time; killing it", child.name)
                self._crew.kill(child)

    def _tend_draining(self) -> None:
        """Replace who dies while requests are still to be ended: without a detokenizer none of them would."""
        try:
            self._crew.tend(time.monotonic())
        except StartupError as error:
            log.error("%s", error)  # the drain has its own end

    def _watch_signals(self) -> None:
        """Turn SIGINT and SIGTERM into a readable socket, so that one wait sees them too."""
        self._wakeup.setblocking(False)
        self._wakeup_writer.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._stop_signals += 1

        signal.signal(signal.SIGINT, on_signal)
        signal.signal(signal.SIGTERM, on_signal)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
