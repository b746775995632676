"""Standard streams that the caller closed are there all the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millstream.cli.standard import open_closed_streams


def test_closed_streams_are_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_closed_streams()
    assert sys.stdin.read() == ""
    assert sys.stdout.write("x") == sys.stderr.write("x") == 1
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
        stream.close()


def test_a_command_with_closed_streams_says_what_it_lacks() -> None:
    command = f"exec {sys.executable} -m millstream chat <&-"
    ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("millstream: ")
