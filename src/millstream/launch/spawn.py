"""Start one child process with its control link."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field

import msgspec

from millstream.config import ChildConfig
from millstream.ipc.control import ControlLink
from millstream.launch.child import CONFIG_LENGTH_BYTES
from millstream.messages import ToSupervisor
from millstream.messages.control import ProcessName, ProcessPhase

# Set before a child's first import of a library that reads them; what the operator has set wins. OpenMP's threads spin at
# barriers: with its own default a decode step of 32 ms takes 96 while another process has one of two cores, with no spinning
# 46 and 52, with this many spins 32 and 76. Two such processes are worse for all of them.
_ENVIRONMENT: dict[ProcessName, dict[str, str]] = {
    "scheduler": {"GOMP_SPINCOUNT": "3000"},
    "entry": {},
    "detokenizer": {},
}


@dataclass
class Child:
    """A child process as its supervisor holds it."""

    name: ProcessName
    process: subprocess.Popen[bytes]
    link: ControlLink
    state: ProcessPhase = field(default="STARTING")

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid


def spawn(name: ProcessName, config: ChildConfig) -> Child:
    """Start process `name` in a session of its own (the terminal's Ctrl-C must not reach it) and hand it `config`."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "millstream.launch.child", name, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**_ENVIRONMENT[name], **os.environ},  # noqa: TID251  # a child's environment is made here and nowhere else
        )
    body = msgspec.json.encode(config)
    ours.sendall(len(body).to_bytes(CONFIG_LENGTH_BYTES, "big") + body)
    return Child(name=name, process=process, link=ControlLink(ours, ToSupervisor))
