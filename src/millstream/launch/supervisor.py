"""The supervisor: starts the three processes, waits for READY, death or time-out in one place, and stops everything.

It owns processes and the socket directory, and no request. Children are told what they need to know over their control
links; the entry is also told about the others, so that `/health` and `/ready` are true.
"""

from __future__ import annotations

import logging
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from millstream.config import ChildConfig, ServerConfig
from millstream.errors import StartupError
from millstream.ipc.control import PeerGone
from millstream.launch.spawn import Child, spawn
from millstream.messages import ChildError, EngineInfo, ProcessState, Ready, ServerState, Shutdown
from millstream.messages.control import ProcessName

log = logging.getLogger(__name__)

PROCESSES: tuple[ProcessName, ...] = ("entry", "scheduler", "detokenizer")
STOP_GRACE_S = 5.0  # what a child gets to exit after it was told to, drain not included


class Supervisor:
    """One server's processes, from start to the last file removed. `run` is its whole life: call it once, in the main thread.

    It takes SIGINT and SIGTERM for itself.
    """

    def __init__(self, config: ServerConfig, on_ready: Callable[[str, EngineInfo], None]) -> None:
        self._config = config
        self._on_ready = on_ready
        self._children: dict[ProcessName, Child] = {}
        self._engine: EngineInfo | None = None
        self._url = ""
        self._error: ChildError | None = None
        self._stop_signals = 0
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_writer = socket.socketpair()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; returns after a clean stop.

        Raises:
            StartupError: a process did not become ready, or died; everything is stopped and removed by then.
        """
        directory = tempfile.mkdtemp(prefix="millstream-")  # mode 0700: nobody else can connect
        self._watch_signals()
        try:
            child_config = ChildConfig(server=self._config, socket_directory=directory)
            for name in PROCESSES:
                self._children[name] = spawn(name, child_config)
                self._selector.register(self._children[name].link, selectors.EVENT_READ, self._children[name])
            self._publish()
            self._serve()
        finally:
            self._stop_all()
            shutil.rmtree(directory, ignore_errors=True)

    def _serve(self) -> None:
        deadline = time.monotonic() + self._config.start_timeout_s
        announced = False
        while not self._stop_signals:
            self._wait(None if announced else deadline)
            dead = [child for child in self._children.values() if child.state == "FAILED"]
            if dead:
                raise self._death(dead[0])
            if not announced and all(child.state == "READY" for child in self._children.values()):
                announced = True
                assert self._engine is not None  # the scheduler's Ready carries it
                self._on_ready(self._url, self._engine)
            if not announced and time.monotonic() >= deadline:
                late = ", ".join(child.name for child in self._children.values() if child.state != "READY")
                raise StartupError(
                    f"not ready after {self._config.start_timeout_s:g} s: {late}",
                    hint="a larger model needs a larger --start-timeout-s",
                )

    def _wait(self, deadline: float | None) -> None:
        """Wait once for any child's message or death, a signal, or the deadline; take what came."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._wakeup:
                self._wakeup.recv(64)
                continue
            child: Child = key.data
            try:
                messages = child.link.receive()
            except PeerGone:
                self._selector.unregister(child.link)
                child.state = "STOPPED" if child.state == "DRAINING" else "FAILED"
                self._publish()
                continue
            for message in messages:
                self._take(child, message)

    def _take(self, child: Child, message: Any) -> None:
        if isinstance(message, ChildError):
            self._error = self._error or message
            return
        if isinstance(message, Ready) and child.state == "STARTING":
            child.state = "READY"
            self._engine = message.engine or self._engine
            self._url = message.url or self._url
            self._publish()

    def _publish(self) -> None:
        """Tell the entry how everybody is."""
        processes: dict[str, ProcessState] = {
            child.name: ProcessState(pid=child.pid, state=child.state) for child in self._children.values()
        }
        self._children["entry"].link.send(ServerState(processes=processes, engine=self._engine))

    def _death(self, child: Child) -> StartupError:
        """What to tell the operator about a child that is gone: its own words, or how the system ended it."""
        if self._error is not None:
            return StartupError(f"{self._error.process}: {self._error.message}", hint=self._error.hint)
        code = child.process.wait(timeout=STOP_GRACE_S)
        return StartupError(f"the {child.name} process ended ({_describe_exit(code)})")

    def _stop_all(self) -> None:
        """Stop the entry first, which drains while the others still work; then the others; then whoever did not listen."""
        failed = any(child.state == "FAILED" for child in self._children.values())
        drain_s = 0.0 if failed else self._config.drain_timeout_s
        self._stop_group([n for n in self._children if n == "entry"], drain_s)
        self._stop_group([n for n in self._children if n != "entry"], 0.0)
        for child in self._children.values():
            child.link.close()
        self._selector.close()
        self._wakeup.close()
        self._wakeup_writer.close()

    def _stop_group(self, names: list[ProcessName], drain_s: float) -> None:
        group = [self._children[name] for name in names]
        for child in group:
            if child.state in ("STARTING", "READY"):
                # a child that is still loading has nothing to drain and may not read its link for a long time
                starting = child.state == "STARTING" and child.name != "entry"
                child.state = "DRAINING"
                self._publish()
                child.link.send(Shutdown(drain_s=drain_s))
                if starting:
                    child.process.terminate()
        deadline = time.monotonic() + drain_s + STOP_GRACE_S
        while any(child.state == "DRAINING" for child in group) and time.monotonic() < deadline:
            if self._stop_signals > 1:  # asked again: no more patience, with nobody
                break
            self._wait(deadline)
        for child in group:
            if child.state == "DRAINING":
                log.warning("%s did not stop in time; killing it", child.name)
                child.process.kill()
            try:
                child.process.wait(timeout=STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.state == "DRAINING":
                child.state = "STOPPED"

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


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
