"""A Millstream server of a benchmark's own, started by its command line and stopped at the end of a block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

READY = "Millstream is ready: "


@contextmanager
def millstream(options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """URL and process id of the supervisor of a ready server with these options of `millstream serve`."""
    command = [sys.executable, "-m", "millstream", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ready_url(process), process.pid
        finally:
            process.terminate()
            process.stdout.read()  # so that its last words do not block it


def ready_url(process: subprocess.Popen[str]) -> str:
    """Wait until a server that writes to a pipe says that it is ready, and return its URL.

    Raises:
        SystemExit: it ended before.
    """
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith(READY)), None)
    if line is None:
        raise SystemExit(f"the server did not start: {process.args}")
    return line.removeprefix(READY).strip()
