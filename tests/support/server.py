"""A real server as a child process of the test: started by its command line, found by what it prints, stopped by SIGTERM."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class Server:
    """One running `millstream serve`. Its log goes to a file: a pipe that nobody reads would stop the server when full."""

    def __init__(self, *arguments: str, directory: Path | None = None) -> None:
        environment = dict(os.environ)  # noqa: TID251  # handed on, with one directory changed
        if directory is not None:
            environment["TMPDIR"] = str(directory)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `__exit__`
        port = () if "--port" in arguments else ("--port", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream", "serve", "--strict-ledger", *port, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        self.output = ""

    def wait_ready(self, *, timeout: float = START_TIMEOUT_S) -> str:
        """The URL, once the server says it is ready."""
        return self.read_until(r"Millstream is ready: (http://\S+)\n", timeout=timeout).group(1)

    def read_until(self, pattern: str, *, timeout: float = START_TIMEOUT_S) -> re.Match[str]:
        """Wait until the server printed `pattern` to its standard output."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (found := re.search(pattern, self.output)) is None:
                data = b""
                if selector.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    raise AssertionError(f"no {pattern!r} in:\n{self.output}\n{self.log()}")
                self.output += data.decode()
        return found

    def log(self) -> str:
        """What the server has logged so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        return self.process.wait(timeout=STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        log = self.log()
        self._log.close()
        if error is not None:
            print(f"exit status {self.process.returncode}; the end of the log:\n{log[-8000:]}", file=sys.stderr)
        assert error is not None or "the ledger does not balance" not in log, log


@contextmanager
def running_server(*arguments: str, directory: Path | None = None) -> Iterator[str]:
    """A ready server's URL; it must stop cleanly afterwards."""
    with Server(*arguments, directory=directory) as server:
        url = server.wait_ready()
        yield url
        if server.process.poll() is None:
            assert server_info(url)["stream_mismatch_total"] == 0, server.log()
            assert_ledger_comes_to_rest(url)
        assert server.stop() == 0, server.log()


def server_info(url: str) -> dict[str, Any]:
    """`/server_info` of a running server."""
    return httpx.get(f"{url}/server_info", timeout=30).raise_for_status().json()


def assert_comes_to_rest(url: str, pages_free: int, *, timeout: float = 60.0) -> None:
    """Wait until no process knows any request and `pages_free` pages are free; fails with what is left.

    Each look is a round trip through all three processes, so there is nothing to sleep for in between.
    """
    assert_ledger_comes_to_rest(url, timeout=timeout)
    info = server_info(url)
    assert (info["live_requests"], info["pages_free"]) == (0, pages_free), info


def ledger(url: str) -> dict[str, Any]:
    """`/debug/ledger` of a running server."""
    return httpx.get(f"{url}/debug/ledger", timeout=30).raise_for_status().json()


def assert_ledger_comes_to_rest(url: str, *, timeout: float = 60.0) -> None:
    """Wait until no process holds anything for any request; nothing may ever have been amiss."""
    deadline = time.monotonic() + timeout
    while True:
        found = ledger(url)
        assert found["mismatches"] == 0, found
        if not found["held"]:
            assert found["totals"] == {}
            return
        assert time.monotonic() < deadline, found
