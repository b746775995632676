"""A running server's level is changed in all its processes, and all that it writes is JSON where that was asked for."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from tests.support.chat import ask_streamed, script
from tests.support.faults import DEADLINE_S
from tests.support.server import Server

pytestmark = pytest.mark.long


def lines(server: Server) -> list[dict[str, Any]]:
    """What was logged, but for a line that is being written."""
    return [json.loads(line) for line in server.log().splitlines(keepends=True) if line.endswith("\n")]


def test_levels_change_while_it_runs() -> None:
    with Server("--executor", "scripted", "--script", "inline", "--log-format", "json", "--log-requests", "text") as server:
        url = server.wait_ready()
        assert ask_streamed(url, {"messages": script("one")}).status == 200
        answer = httpx.post(f"{url}/log_level", json={"level": "debug"}, timeout=60)
        assert answer.json() == httpx.get(f"{url}/log_level", timeout=60).json() == {"level": "debug"}
        assert ask_streamed(url, {"messages": script("two")}).status == 200
        deadline = time.monotonic() + DEADLINE_S
        while not any(line["level"] == "debug" and "stages_ms" in line["message"] for line in lines(server)):
            assert time.monotonic() < deadline, server.log()
        assert server.stop() == 0
        ends = [line for line in lines(server) if "rid" in line]
        assert [line["answer_text"] for line in ends] == ["one", "two"]
        assert any("log level is debug" in line["message"] and line["process"] == "supervisor" for line in lines(server))
