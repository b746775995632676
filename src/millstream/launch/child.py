"""The first code of a child process: `python -m millstream.launch.child KIND FD`. Started by `spawn`, never by hand.

Reads its configuration from the control link, runs the process of that kind, and reports why it could not go on.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys

import msgspec
from setproctitle import setproctitle

from millstream.config import ChildConfig
from millstream.errors import StartupError
from millstream.ipc.control import ControlLink, PeerGone
from millstream.messages import ChildError, FromSupervisor
from millstream.messages.control import ProcessName
from millstream.observe.log import configure_logging

log = logging.getLogger(__name__)

CONFIG_LENGTH_BYTES = 4


def main(kind: ProcessName, fd: int) -> int:
    """Run a process of `kind` over the socket `fd` until it ends; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which tells us in its order
    sock = socket.socket(fileno=fd)
    config = _read_config(sock)
    if config is None:
        return 1
    setproctitle(f"millstream::{config.name}")
    configure_logging(config.name, config.server.log_level, config.server.log_format)
    control = ControlLink(sock, FromSupervisor)
    try:
        importlib.import_module(f"millstream.{kind}.process").run(config, control)
    except PeerGone:
        log.error("the supervisor is gone; stopping")
        with contextlib.suppress(OSError):  # it cannot do it any more; works for the last of us, when the sockets are gone
            config.socket_dir.rmdir()
        return 1
    except StartupError as error:
        control.send(ChildError(process=kind, message=str(error), hint=error.hint))
        return 1
    except Exception as error:
        log.exception("%s cannot go on", config.name)
        control.send(ChildError(process=kind, message=f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _read_config(sock: socket.socket) -> ChildConfig | None:
    """The configuration the supervisor sends first, or None where the supervisor is gone."""
    header = _read_exactly(sock, CONFIG_LENGTH_BYTES)
    body = _read_exactly(sock, int.from_bytes(header, "big"))
    return msgspec.json.decode(body, type=ChildConfig) if body else None


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            return b""
        data += part
    return data


if __name__ == "__main__":
    status = main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]  # the supervisor passes a ProcessName
    sys.stdout.flush()
    sys.stderr.flush()
    # leave without the interpreter's teardown: torch's thread pools can hang there, and everything of ours is closed
    os._exit(status)
