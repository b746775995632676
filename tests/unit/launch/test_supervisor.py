"""The supervisor with children of the test's own: READY, death and time-out are one wait, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream.config import ChildConfig, ServerConfig
from millstream.errors import StartupError
from millstream.ipc.control import ControlLink
from millstream.launch import supervisor as supervisor_module
from millstream.launch.spawn import Child
from millstream.launch.supervisor import Supervisor
from millstream.messages import EngineInfo, ToSupervisor
from millstream.messages.control import ProcessName

# A child that speaks the control protocol and does what its role says.
CHILD = """
import socket, sys, time
from millstream.ipc.control import ControlLink
from millstream.messages import ChildError, EngineInfo, FromSupervisor, Ready, Shutdown
name, role, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
link = ControlLink(socket.socket(fileno=fd), FromSupervisor)
engine = EngineInfo(vocab_size=1, context_length=2, eos_token_ids=[], num_pages=1, page_size=1,
                    max_running_requests=1, executor="test")
if role == "error":
    link.send(ChildError(process=name, message="no such thing", hint="make one"))
    sys.exit(1)
if role == "die":
    sys.exit(3)
if role != "silent":
    link.send(Ready(process=name, engine=engine if name == "scheduler" else None, url="http://x" if name == "entry" else None))
import select
while True:
    select.select([link], [], [])
    if any(isinstance(message, Shutdown) for message in link.receive()) and role != "stubborn":
        sys.exit(0)
"""


class Launcher:
    """Stands in for `spawn`: starts the children above with a role each."""

    def __init__(self, **roles: str) -> None:
        self.roles = roles
        self.children: list[Child] = []
        self.directory = Path()

    def __call__(self, name: ProcessName, config: ChildConfig) -> Child:
        import socket

        self.directory = config.socket_dir
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD, name, self.roles.get(name, "ready"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        child = Child(name=name, process=process, link=ControlLink(ours, ToSupervisor))
        self.children.append(child)
        return child

    def assert_nothing_left(self) -> None:
        assert all(child.process.returncode is not None for child in self.children)
        assert not self.directory.exists()


def serve(monkeypatch: pytest.MonkeyPatch, launcher: Launcher, on_ready: Any = None, **options: Any) -> None:
    monkeypatch.setattr(supervisor_module, "spawn", launcher)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    wakeup = signal.set_wakeup_fd(-1)
    try:
        Supervisor(ServerConfig(**options), on_ready or (lambda url, engine: None)).run()
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers:
            signal.signal(number, handler)
    launcher.assert_nothing_left()


def test_ready_is_announced_once_with_what_start_up_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[str, EngineInfo]] = []

    def on_ready(url: str, engine: EngineInfo) -> None:
        announced.append((url, engine))
        os.kill(os.getpid(), signal.SIGTERM)

    serve(monkeypatch, Launcher(), on_ready)
    ((url, engine),) = announced
    assert url == "http://x"
    assert engine.executor == "test"


@pytest.mark.parametrize("victim", ["entry", "scheduler", "detokenizer"])
def test_a_child_that_says_why_it_ends_is_quoted(monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    launcher = Launcher(**{victim: "error"})
    with pytest.raises(StartupError, match=f"{victim}: no such thing") as caught:
        serve(monkeypatch, launcher)
    assert caught.value.hint == "make one"
    launcher.assert_nothing_left()


def test_a_child_that_dies_without_a_word_is_named_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(detokenizer="die")
    with pytest.raises(StartupError, match=r"the detokenizer process ended \(exit status 3\)"):
        serve(monkeypatch, launcher)
    launcher.assert_nothing_left()


def test_a_child_that_never_becomes_ready_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(scheduler="silent")
    with pytest.raises(StartupError, match="not ready after 3 s: scheduler"):
        serve(monkeypatch, launcher, start_timeout_s=3.0)
    launcher.assert_nothing_left()


def test_a_child_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_GRACE_S", 0.5)
    launcher = Launcher(detokenizer="stubborn")
    serve(monkeypatch, launcher, lambda url, engine: os.kill(os.getpid(), signal.SIGINT))
    codes = {child.name: child.process.returncode for child in launcher.children}
    assert codes == {"entry": 0, "scheduler": 0, "detokenizer": -signal.SIGKILL}


def test_a_second_signal_ends_the_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_ready(url: str, engine: EngineInfo) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()

    serve(monkeypatch, Launcher(entry="stubborn"), on_ready, drain_timeout_s=3000.0)
