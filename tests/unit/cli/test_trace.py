"""`millstream trace`: one request, and its way as the server tells it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import trace as module
from millstream.cli.main import run
from tests.support.sse_server import MODELS, openai_stand_in

REQUEST: dict[str, Any] = {
    "rid": "r1",
    "trace_id": "ab" * 16,
    "api": "chat",
    "model": "tiny",
    "state": "ended",
    "cause": "length",
    "prompt_tokens": 9,
    "cached_tokens": 4,
    "completion_tokens": 3,
    "ttft_ms": 12.5,
    "stages": [
        {"name": "template", "process": "entry", "start_ms": 0.0, "duration_ms": 1.0},
        {"name": "queue", "process": "scheduler", "start_ms": 1.0, "duration_ms": 2.0},
        {"name": "write", "process": "entry", "start_ms": 3.0, "duration_ms": 0.5},
    ],
    "ttft": {"template": 1.0, "queue": 11.5},
    "waits": [{"reason": "page_shortage", "start_ms": 1.0, "duration_ms": 1.5, "detail": {}}],
    "cache": {"reason": "diverged", "diverged_at": 5},
}
GETS = {**MODELS, "/v1/requests/chatcmpl-r1": REQUEST, "/v1/requests/chatcmpl-r1?format=perfetto": {"traceEvents": []}}


def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": "chatcmpl-r1", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        *({"id": "chatcmpl-r1", "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("He", "\x1b[2J", "llo")),
        {"id": "chatcmpl-r1", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    ]


def test_the_walk_shows_stations_objects_counts_and_deltas(capsys: pytest.CaptureFixture[str]) -> None:
    with openai_stand_in(answer, GETS) as server:
        assert run(["trace", "Hi there", "--url", server.url, "--max-tokens", "3", "--temperature", "0"]) == 0
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "Hi there"}]
    assert (server.bodies[0]["max_tokens"], server.bodies[0]["temperature"], server.bodies[0]["stream"]) == (3, 0, True)
    shown = capsys.readouterr().out
    assert "rid r1" in shown
    assert "9 prompt tokens (4 cached), 3 new  ended by length" in shown
    assert "ChatCompletionRequest -> GenerateReqInput  'Hi there'" in shown
    assert "Req, WAITING -> Req, RUNNING  cache: 4 tokens, diverged at 5" in shown
    assert "BatchStrOutput -> ChatCompletionChunk, SSE" in shown
    assert "page_shortage" in shown
    assert "first token after 12.50 ms: template 1.00, queue 11.50" in shown
    assert "\x1b" not in shown
    assert shown.count("'He'") == 1


def test_json_and_a_file_for_perfetto(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with openai_stand_in(answer, GETS) as server:
        assert run(["trace", "Hi", "--url", server.url, "--json", "--perfetto", str(file)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["request"] == REQUEST
    assert [delta["text"] for delta in made["deltas"]] == ["He", "\x1b[2J", "llo"]
    assert json.loads(file.read_text()) == {"traceEvents": []}


def test_a_file_that_cannot_be_written_is_said_in_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with openai_stand_in(answer, GETS) as server:
        assert run(["trace", "Hi", "--url", server.url, "--perfetto", str(tmp_path / "none" / "trace.json")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_another_server_knows_no_timelines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_WAIT_S", 0.0)
    with openai_stand_in(answer) as server:
        assert run(["trace", "Hi", "--url", server.url]) == 1
    assert "must be a Millstream server" in capsys.readouterr().err


def test_a_server_that_refuses_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    with openai_stand_in(lambda body: (400, {"error": {"message": "no such thing"}})) as server:
        assert run(["trace", "Hi", "--url", server.url]) == 1
    assert "no such thing" in capsys.readouterr().err


def test_without_a_server_it_says_what_starts_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "Hi", "--url", "http://127.0.0.1:1"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "no server answers at http://127.0.0.1:1" in told.err
    assert "`millstream serve`" in told.err


def test_help_tells_the_exit_codes_and_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Exits with 0" in shown
    for line in module.EXAMPLES.strip().splitlines():
        assert line in shown
        module.app.parse_args(shlex.split(line)[2:], exit_on_error=False)
