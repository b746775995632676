"""Rubbish on the sockets of a running server: no process ends, no request is touched, and the log stays readable."""

from __future__ import annotations

import contextlib
import itertools
import socket
from pathlib import Path

import msgspec
import pytest

from millstream.ipc.frames import frame
from millstream.messages import BatchTokenIDOutput, TokenRow, Usage
from tests.support.faults import assert_at_rest, assert_whole, open_streams, pids_of, running

RUBBISH = {
    "pickle": frame(b"\x80\x04."),
    "no message": frame(b"\xc1"),
    "unknown type": frame(b"\x81\xa4type\xa7unknown"),
    "another hop's": frame(msgspec.msgpack.encode(BatchTokenIDOutput([TokenRow("r", [-1], Usage(1, 1))]))),
    "endless": b"\xff" * 4096,
    "cut": frame(b"x" * 100)[:50],
}


@pytest.mark.long
def test_rubbish_from_strangers_harms_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as (server, url):
        pids = pids_of(url)
        streams = open_streams(url, 800)
        (directory,) = tmp_path.iterdir()
        for path, rubbish in itertools.product(directory.iterdir(), RUBBISH.values()):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # cut off
                    for _ in range(1000):
                        stranger.sendall(rubbish)
        assert_whole(streams, 800)
        assert_at_rest(url)
        assert pids_of(url) == pids
        assert server.log().count("dropped a message") + server.log().count("cut off") < 50
