"""Start one child process with its control link, and the phases it moves through."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field

import msgspec

from millstream.config import ChildConfig
from millstream.errors import InvariantError
from millstream.ipc.control import ControlLink
from millstream.launch.child import CONFIG_LENGTH_BYTES
from millstream.messages import ChildError, Measures, ToSupervisor
from millstream.messages.control import ProcessName, ProcessPhase

# Set before a child's first import of a library that reads them; what the operator has set wins. OpenMP's threads spin at
# barriers: with its own default a decode step of 32 ms takes 96 while another process has one of two cores, with no spinning
# 46 and 52, with this many spins 32 and 76. Two such processes are worse for all of them. Numpy's threads spin as it is
# imported, and multiply nothing here.
_ENVIRONMENT: dict[ProcessName, dict[str, str]] = {
    "scheduler": {"GOMP_SPINCOUNT": "3000", "OPENBLAS_NUM_THREADS": "1"},
    "entry": {"OPENBLAS_NUM_THREADS": "1"},
    "detokenizer": {"OPENBLAS_NUM_THREADS": "1"},
}
EXIT_GRACE_S = 5.0  # what a child that has closed its link gets to be gone

NEXT: dict[ProcessPhase, frozenset[ProcessPhase]] = {
    "STARTING": frozenset({"READY", "DRAINING", "FAILED"}),
    "READY": frozenset({"DRAINING", "FAILED"}),
    "DRAINING": frozenset({"STOPPED", "FAILED"}),
    "STOPPED": frozenset(),
    "FAILED": frozenset(),  # what takes its place is another process
}


@dataclass
class Child:
    """A child process as its supervisor holds it. `name` is its own; `kind` says what it runs."""

    kind: ProcessName
    name: str
    process: subprocess.Popen[bytes]
    link: ControlLink
    started_at: float = 0.0  # seconds of the monotonic clock
    phase: ProcessPhase = "STARTING"
    error: ChildError | None = field(default=None)  # its own words on why it cannot go on
    measures: Measures | None = None  # what it had counted when it last told

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def move(self, phase: ProcessPhase) -> None:
        """Go to `phase`: the only way there.

        Raises:
            InvariantError: the move is not in `NEXT`.
        """
        if phase not in NEXT[self.phase]:
            raise InvariantError(f"{self.name} cannot go from {self.phase} to {phase}")
        self.phase = phase

    def reap(self, grace_s: float = EXIT_GRACE_S) -> None:
        """Wait for the process to be gone; after `grace_s` seconds, kill it first."""
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def describe_death(self) -> str:
        """What to tell the operator about a child that was reaped: its own words, or how the system ended it."""
        if self.error is not None:
            return f"{self.name}: {self.error.message}"
        code = self.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the {self.name} process ended ({how})"


def spawn(kind: ProcessName, config: ChildConfig) -> Child:
    """Start a process of `kind` in a session of its own (the terminal's Ctrl-C must not reach it) and hand it `config`."""
    ours, theirs = socket.socketpair()
    fds = [theirs.fileno()] if config.listen_fd is None else [theirs.fileno(), config.listen_fd]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "millstream.launch.child", kind, str(theirs.fileno())],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**_ENVIRONMENT[kind], **os.environ},  # noqa: TID251  # a child's environment is made here and nowhere else
        )
    body = msgspec.json.encode(config)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # dead already: its link will say so
        ours.sendall(len(body).to_bytes(CONFIG_LENGTH_BYTES, "big") + body)
    return Child(kind=kind, name=config.name, process=process, link=ControlLink(ours, ToSupervisor))
