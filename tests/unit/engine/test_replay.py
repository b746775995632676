"""A recorded call replays to the same bytes, and a fault in what makes them is found."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.detokenizer import detokenizer_manager
from millstream.engine.core import Core
from millstream.engine.replay import NotReplayable, masked, read_recording, replay
from millstream.entry.http.app import App
from millstream.entry.tape import Tape
from millstream.entry.tape_privacy import Mask
from tests.support.asgi import Call, Response
from tests.support.chat import script

ASK = {"x-millstream-record": "1"}


class Recorder:
    """A server in this process that records."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        options = {"record": str(folder), "executor": "scripted", "script": "inline"} | options
        self.core = Core(ServerConfig(**options))
        self.app = App(self.core.service)

    def ask(self, path: str, body: Any, *, leave_at: bytes | None = None, headers: dict[str, str | None] | None = None) -> Any:
        async def scenario() -> Response | None:
            call = Call(self.app, path, body, headers=ASK if headers is None else headers)
            if leave_at is None:
                return await call.response()
            await call.until(leave_at)
            call.disconnect()
            await asyncio.wait([call.task])
            return None

        return self.core.run(scenario()).result(100)

    def recordings(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "tapes")
    yield made
    made.core.close()


def chat(*pieces: Any, fields: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"messages": script(*pieces, **more), "stream": True, **(fields or {})}


CALLS = [
    pytest.param("/v1/chat/completions", chat("héllo", " wörld 🌍", " and"), id="stream"),
    pytest.param("/v1/chat/completions", chat("one ", "two STO", "P three", fields={"stop": ["STOP"]}), id="stop-string"),
    pytest.param("/v1/chat/completions", chat("a", "b", "c", fields={"max_tokens": 2}), id="length"),
    pytest.param("/v1/chat/completions", chat("x ", "y ", "z", fields={"n": 2}), id="two-choices"),
    pytest.param("/v1/chat/completions", chat("p", "q", fields={"logprobs": True, "top_logprobs": 2}), id="logprobs"),
    pytest.param("/v1/chat/completions", chat("whole", " answer", fields={"stream": False}), id="plain"),
    pytest.param(
        "/v1/chat/completions",
        chat(
            '<tool_call>\n{"name": "f", "argu',
            'ments": {"a": "ü"}}\n</tool_call>',
            fields={"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        ),
        id="tool-call",
    ),
    pytest.param("/generate", {"text": script("g", "h")[0]["content"], "stream": True}, id="generate"),
    pytest.param("/v1/chat/completions", {"messages": []}, id="refused"),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_recorded_call_replays_to_the_same_bytes(recorder: Recorder, path: str, body: dict[str, Any]) -> None:
    answer = recorder.ask(path, body)
    (file,) = recorder.recordings()
    recording = read_recording(file)
    assert recording.body == answer.content
    result = replay(recording)
    assert result.is_equal, (result.before, result.now)
    assert result.status == (answer.status, answer.status)


def test_one_whose_client_left_replays_up_to_there(recorder: Recorder) -> None:
    recorder.ask("/v1/chat/completions", chat("first ", "second ", "third", step_ms=20), leave_at=b"first")
    recording = read_recording(recorder.recordings()[0])
    assert not recording.wire.complete
    result = replay(recording)
    assert result.is_equal and b"first" in result.now


def test_a_broken_detokenizer_is_found(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.ask("/v1/chat/completions", chat("héllo", " wörld"))
    recording = read_recording(recorder.recordings()[0])
    visible = detokenizer_manager._visible_text
    monkeypatch.setattr(detokenizer_manager, "_visible_text", lambda *facts: visible(*facts).replace("ö", "o"))
    monkeypatch.setattr(
        detokenizer_manager.DetokenizerManager, "_take_columns", _as_rows(detokenizer_manager.DetokenizerManager._take_columns)
    )
    result = replay(recording)
    assert not result.is_equal
    assert "wörld".encode() in result.before


def _as_rows(take: Any) -> Any:
    def broken(self: Any, columns: Any) -> None:
        take(self, columns)
        for entry in self._entries.values():
            for each in entry.columns:
                each.texts[:] = [text.replace("ö", "o") for text in each.texts]

    return broken


def test_nothing_is_recorded_that_was_not_asked_for_and_only_the_owner_may_read_it(recorder: Recorder) -> None:
    recorder.ask("/v1/chat/completions", chat("a"), headers={})
    assert recorder.recordings() == []
    recorder.ask("/v1/chat/completions", chat("a"))
    (file,) = recorder.recordings()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_in_privacy_no_text_is_kept_and_it_is_not_replayed(tmp_path: Path) -> None:
    made = Recorder(tmp_path, record_privacy=True, record_sample=1.0, record_max_files=2)
    try:
        for _ in range(3):
            made.ask("/v1/chat/completions", chat("geheim", " wort", fields={"stop": ["Halt!"]}), headers={})
        assert len(made.recordings()) == 2
        text = made.recordings()[0].read_text()
        assert not any(word in text for word in ("geheim", "wort", "Halt"))
        rows = [line for line in map(json.loads, text.splitlines()) if line["type"] == "row"]
        assert rows
        with pytest.raises(NotReplayable, match="privacy"):
            read_recording(made.recordings()[0])
    finally:
        made.core.close()


def test_in_privacy_no_ids_of_a_prompt_are_kept_by_whatever_name_they_came(tmp_path: Path) -> None:
    made = Recorder(tmp_path, record_privacy=True)
    try:
        made.ask("/v1/completions", {"prompt": [71, 72, 73], "max_tokens": 1})
        made.ask("/v1/embeddings", {"input": [[71, 72], [73]]})
        texts = [file.read_text() for file in made.recordings()]
    finally:
        made.core.close()
    calls = [json.loads(text.splitlines()[1])["body"] for text in texts]
    assert [call.get("prompt", call.get("input")) for call in calls] == [[0, 1, 2], [[0, 1], [2]]]
    assert not any(f"{number}" in line for text in texts for line in text.splitlines()[1:2] for number in (71, 72, 73))


@pytest.mark.parametrize("privacy", [False, True])
def test_a_body_that_is_nested_too_deeply_is_recorded_as_none(privacy: bool) -> None:
    tape = Tape(Mask() if privacy else None)
    for depth in (600, 100_000):
        tape.asked("POST", "/generate", b'{"text": ' + b"[" * depth + b"]" * depth + b"}")
    assert json.loads(tape.lines[-1])["body"] is None


def test_those_that_fail_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    made = Recorder(tmp_path, record_failed=True)
    try:
        made.ask("/v1/chat/completions", chat("fine"), headers={})
        assert made.recordings() == []
        made.ask("/v1/chat/completions", chat("bad ", "end", fault={"kind": "error", "after": 1}), headers={})
        (file,) = made.recordings()
        result = replay(read_recording(file))
        assert result.is_equal, (result.before, result.now)
    finally:
        made.core.close()


def test_what_is_no_recording_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with pytest.raises(NotReplayable):
        read_recording(file)
    for line in ("{}", '{"type": "request", "request": 5}', "[" * 100_000):
        file.write_text(line + "\n")
        with pytest.raises(NotReplayable):
            read_recording(file)


def test_a_recording_with_a_foreign_line_is_refused(recorder: Recorder) -> None:
    recorder.ask("/v1/chat/completions", chat("a"))
    (file,) = recorder.recordings()
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], '{"type": "request", "request": {"sampling": 1}}', *lines[2:]]))
    with pytest.raises(NotReplayable, match="not a recording"):
        read_recording(file)


def test_a_call_with_a_grammar_is_not_replayed(recorder: Recorder) -> None:
    recorder.ask("/v1/chat/completions", chat("{}", fields={"response_format": {"type": "json_object"}}))
    with pytest.raises(NotReplayable, match="grammar"):
        read_recording(recorder.recordings()[0])


def test_ids_times_and_signs_of_life_are_masked_and_text_is_not() -> None:
    data = b': queued 3\n\ndata: {"id":"chatcmpl-0123456789abcdef","created":1700000000,"content":"call 12"}\n\n'
    assert masked(data) == b'data: {"id":"ID","created":0,"content":"call 12"}\n\n'
