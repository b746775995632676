"""`millstream replay`: three ways to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.cli.replay import replay_report
from millstream.engine.replay import Result


def test_equal_bytes_are_one_line() -> None:
    assert replay_report("a", Result((200, 200), b"x", b"x", True)) == "a: equal, 1 bytes\n"


def test_what_differs_is_shown() -> None:
    report = replay_report("a", Result((200, 500), b"data: 1\n\ndata: 2\n", b"data: 1\n\ndata: 3\n", False))
    assert "status 200 then, 500 now" in report
    assert "-data: 2" in report and "+data: 3" in report


def test_what_cannot_be_replayed_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.main.configure_logging", lambda *_: None)
    assert run(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "is not a recording" in capsys.readouterr().err
