"""`millstream chat` as it is called: once with a question, with standard input, and what it exits with."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import main
from millstream.cli.chat import command
from tests.support.sse_server import Answer, deltas, openai_stand_in


def echo(body: dict[str, Any]) -> Answer:
    return deltas("you said ", body["messages"][-1]["content"])


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def test_a_question_is_answered_once_without_anything_else(no_input: None, capsys: pytest.CaptureFixture[str]) -> None:
    with openai_stand_in(echo) as server:
        arguments = [
            "chat",
            "--url",
            server.url,
            "--system",
            "S",
            "--temperature",
            "0",
            "--max-tokens",
            "9",
            "--seed",
            "3",
            "hi",
        ]
        assert main.run(arguments) == 0
    assert capsys.readouterr() == ("you said hi\n", "")
    (body,) = server.bodies
    assert body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 9,
        "seed": 3,
    }


def test_standard_input_is_the_question_or_stands_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("from a file")
    with openai_stand_in(echo) as server:
        for arguments, question in (([], "from a file"), (["Sum up:"], "Sum up:\n\nfrom a file")):
            with text.open() as file:
                monkeypatch.setattr(sys, "stdin", file)
                assert main.run(["chat", "--url", server.url, *arguments]) == 0
            assert server.bodies[-1]["messages"][-1]["content"] == question
        with Path("/dev/null").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main.run(["chat", "--url", server.url]) == 1
    assert "standard input is empty" in capsys.readouterr().err


def test_an_interrupt_is_130(no_input: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(self: object, event: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("millstream.cli.chat.answer.Answer.take", interrupted)
    with openai_stand_in(echo) as server:
        assert main.run(["chat", "--url", server.url, "hi"]) == 130
    assert "[stopped]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "message"),
    [((429, {"error": {"message": "too many"}}), "429: too many"), ([{"error": {"message": "it died"}}], "it died")],
)
def test_a_server_that_fails_is_1(answer: Answer, message: str, no_input: None, capsys: pytest.CaptureFixture[str]) -> None:
    with openai_stand_in(lambda _: answer) as server:
        assert main.run(["chat", "--url", server.url, "hi"]) == 1
    assert message in capsys.readouterr().err


def test_wrong_arguments_are_2_and_a_file_that_is_no_list_of_tools_is_1(
    tmp_path: Path, no_input: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["chat", "--temprature", "1"]) == 2
    (tmp_path / "tools.json").write_text("{}")
    assert main.run(["chat", "hi", "--tools", str(tmp_path / "tools.json")]) == 1
    assert "a JSON list" in capsys.readouterr().err


def test_tools_are_offered_and_their_calls_shown(tmp_path: Path, no_input: None, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    call = {"index": 0, "id": "c1", "function": {"name": "now", "arguments": "{}"}}
    asks = [{"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}]
    with openai_stand_in(lambda _: asks) as server:
        assert main.run(["chat", "--url", server.url, "--tools", str(tmp_path / "tools.json"), "Time?"]) == 0
    assert capsys.readouterr().out == "now({})\n"
    assert server.bodies[0]["tools"] == tools


def test_typed_lines_are_kept_for_their_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    history = tmp_path / "state" / "chat_history"
    monkeypatch.setattr("builtins.input", lambda _: "typed")
    read = command._line_reader(history)
    readline.add_history("typed")  # as the library does, where a terminal is
    assert read("> ") == "typed"
    assert "typed" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    readline.clear_history()
    command._line_reader(history)
    assert readline.get_current_history_length() == 1
    command._line_reader(None)
    assert readline.get_current_history_length() == 0


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["chat", "--help"]) == 0
    out = capsys.readouterr().out
    assert "millstream chat --url" in out
    assert "130: interrupted" in " ".join(out.split())
