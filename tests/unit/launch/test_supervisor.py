"""The supervisor with children of the test's own: READY, death and time-out are one wait, and nothing stays behind."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from millstream.config import ChildConfig, ServerConfig
from millstream.errors import StartupError
from millstream.ipc.address import socket_path
from millstream.ipc.control import ControlLink
from millstream.launch import crew as crew_module
from millstream.launch import supervisor as supervisor_module
from millstream.launch.crew import Crew
from millstream.launch.listen import bind
from millstream.launch.spawn import Child
from millstream.launch.supervisor import Supervisor
from millstream.messages import EngineInfo, ServerState, ToSupervisor
from millstream.messages.control import ProcessName

# A child that speaks the control protocol and does what its role says.
CHILD = """
import os, signal, socket, sys
from millstream.ipc.address import socket_path
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
    link.send(Ready(process=name, engine=engine if name == "scheduler" else None))
if role == "last":
    os.kill(os.getppid(), signal.SIGTERM)
import select
while True:
    select.select([link], [], [])
    if any(isinstance(message, Shutdown) for message in link.receive()) and role != "stubborn":
        sys.exit(0)
"""


class Recorder(ControlLink):
    """A link that keeps what was sent."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, ToSupervisor)
        self.sent: list[Any] = []

    def send(self, message: Any, *, must_arrive: bool = True) -> None:
        self.sent.append(message)
        super().send(message, must_arrive=must_arrive)


class Launcher:
    """Stands in for `spawn`: starts the children above with a role each."""

    def __init__(self, **roles: str) -> None:
        self.roles = roles
        self.children: list[Child] = []
        self.configs: list[ChildConfig] = []
        self.directory = Path()

    def __call__(self, kind: ProcessName, config: ChildConfig) -> Child:
        self.directory = config.socket_dir
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD, kind, self.role(kind, config), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        child = Child(kind=kind, name=config.name, process=process, link=Recorder(ours))
        self.children.append(child)
        self.configs.append(config)
        return child

    def all_of(self, kind: ProcessName) -> list[Child]:
        """Every process of `kind` so far."""
        return [child for child in self.children if child.kind == kind]

    def states_told(self, name: str) -> list[str]:
        """The states of process `name` that its first entry worker was told, each once."""
        link = self.all_of("entry")[0].link
        assert isinstance(link, Recorder)
        states = [m.processes[name].state for m in link.sent if isinstance(m, ServerState) and name in m.processes]
        return [state for state, _ in itertools.groupby(states)]

    def role(self, kind: ProcessName, config: ChildConfig) -> str:
        """What the next process of `kind` does: the role after the one that its predecessors had, the last of them for ever."""
        roles = self.roles.get(kind, "ready").split()
        return roles[min(sum(child.kind == kind for child in self.children), len(roles) - 1)]

    def assert_nothing_left(self) -> None:
        assert all(child.process.returncode is not None for child in self.children)
        assert not self.directory.exists()


def serve(monkeypatch: pytest.MonkeyPatch, launcher: Launcher, on_ready: Any = None, **options: Any) -> None:
    monkeypatch.setattr(crew_module, "spawn", launcher)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    wakeup = signal.set_wakeup_fd(-1)
    try:
        Supervisor(ServerConfig(port=0, **options), on_ready or (lambda url, engine: None)).run()
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
    assert url.startswith("http://127.0.0.1:")
    assert engine.executor == "test"


@pytest.mark.parametrize("victim", ["entry", "scheduler", "detokenizer"])
def test_a_child_that_says_why_it_ends_is_quoted(monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    launcher = Launcher(**{victim: "error"})
    with pytest.raises(StartupError, match=f"{victim}(-0)?: no such thing") as caught:
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
    codes = {child.kind: child.process.returncode for child in launcher.children}
    assert codes == {"entry": 0, "scheduler": 0, "detokenizer": -signal.SIGKILL}


def test_a_second_signal_ends_the_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_ready(url: str, engine: EngineInfo) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()

    serve(monkeypatch, Launcher(entry="stubborn"), on_ready, drain_timeout_s=3000.0)


def kill_first(launcher: Launcher, kind: ProcessName) -> Any:
    """An `on_ready` that kills the process of `kind` that made the server ready."""
    return lambda url, engine: launcher.all_of(kind)[0].process.kill()


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_a_process_that_dies_is_replaced_and_the_entry_is_told_every_change(
    monkeypatch: pytest.MonkeyPatch, victim: ProcessName
) -> None:
    launcher = Launcher(**{victim: "ready last"})
    serve(monkeypatch, launcher, kill_first(launcher, victim))
    first, second = launcher.all_of(victim)
    assert (first.process.returncode, first.phase, second.process.returncode, second.phase) == (-9, "FAILED", 0, "STOPPED")
    told = launcher.states_told(victim)
    assert told[:5] == ["STARTING", "READY", "FAILED", "STARTING", "READY"]
    assert [config.is_successor for config in launcher.configs] == [False, False, False, True]


def test_an_entry_worker_is_replaced_by_one_with_another_number_on_the_same_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(entry="ready ready last")
    serve(monkeypatch, launcher, kill_first(launcher, "entry"), entry_workers=2)
    assert [child.name for child in launcher.all_of("entry")] == ["entry-0", "entry-1", "entry-2"]
    entries = [config for config in launcher.configs if config.name.startswith("entry")]
    assert [config.entry for config in entries] == [0, 1, 2]
    assert len({config.listen_fd for config in entries}) == 1
    assert all(config.listen_fd is None for config in launcher.configs if config not in entries)


def test_the_socket_file_of_the_dead_is_gone_before_its_successor_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(scheduler="ready last")
    there: list[bool] = []

    def on_ready(url: str, engine: EngineInfo) -> None:
        path = socket_path(launcher.directory, "scheduler")
        path.touch()
        role = launcher.role

        def look(kind: ProcessName, config: ChildConfig) -> str:
            there.append(path.exists())
            return role(kind, config)

        monkeypatch.setattr(launcher, "role", look)
        launcher.all_of("scheduler")[0].process.kill()

    serve(monkeypatch, launcher, on_ready)
    assert there == [False]


def test_a_process_that_dies_too_often_ends_the_server_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(detokenizer="ready error")
    with pytest.raises(StartupError, match="detokenizer: no such thing; it was restarted 2 times within 600 s") as caught:
        serve(monkeypatch, launcher, kill_first(launcher, "detokenizer"), max_restarts=2)
    assert caught.value.hint == "make one"
    assert len(launcher.all_of("detokenizer")) == 3
    launcher.assert_nothing_left()


def test_a_successor_that_never_becomes_ready_is_replaced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(scheduler="ready silent last")
    serve(monkeypatch, launcher, kill_first(launcher, "scheduler"), start_timeout_s=3.0)
    assert [child.process.returncode for child in launcher.all_of("scheduler")] == [-9, -9, 0]


def test_a_child_that_sends_no_heartbeats_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(scheduler="ready last")
    serve(monkeypatch, launcher, wedge_timeout_s=3.0)
    first, second = launcher.all_of("scheduler")
    assert (first.process.returncode, second.process.returncode) == (-9, 0)


def test_a_restart_comes_when_its_time_has_come_and_not_into_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(entry="ready die", detokenizer="ready die")
    monkeypatch.setattr(crew_module, "spawn", launcher)
    with selectors.DefaultSelector() as selector, bind("127.0.0.1", 0) as listener, TemporaryDirectory() as directory:
        crew = Crew(ServerConfig(), directory, listener, selector)

        def hear_until(condition: Callable[[], bool]) -> None:
            while not condition():
                for key, _ in selector.select(20):
                    crew.hear(key.data, time.monotonic())

        def is_dead(child: Child) -> bool:
            return child.phase == "FAILED"

        crew.start()
        hear_until(lambda: crew.has_started)
        now = time.monotonic()
        for kind in ("entry", "detokenizer"):
            launcher.all_of(kind)[0].process.kill()
        hear_until(lambda: sum(map(is_dead, crew.children())) == 2)
        crew.tend(now)  # at once
        assert len(launcher.children) == 5
        hear_until(lambda: sum(map(is_dead, crew.children())) == 2)
        crew.tend(now)  # half a second later
        assert crew.next_deadline() == now + 0.5
        crew.tend(now + 0.4)
        assert len(launcher.children) == 5
        crew.drain()
        crew.tend(now + 0.5)
        assert [child.kind for child in launcher.children[5:]] == ["detokenizer"]
        assert crew.next_deadline() >= now + 0.5 + 1
        for child in crew.children():
            if child.phase != "FAILED":
                crew.kill(child)
        crew.close()
        assert all(child.process.returncode is not None for child in launcher.children)
