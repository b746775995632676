"""What is shown: Markdown block by block on a terminal, the exact characters in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millstream.cli.chat.answer import Answer, Part
from millstream.cli.chat.screen import MarkdownScreen, PlainScreen, split_blocks, visible


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("", ""),
        ("one line", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\ntwo\n", "one\n\n"),
        ("```python\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nrest", "```\na\n\nb\n```\n\n"),
        ("````\n```\n\n```\n````\n\nrest", "````\n```\n\n```\n````\n\n"),
        ("~~~\n\n```\n\n", ""),
        ("```\n\n``` no end of it\n\n", ""),
    ],
)
def test_blocks_end_at_blank_lines_outside_code(text: str, done: str) -> None:
    assert split_blocks(text) == (done, text[len(done) :])


def test_control_characters_are_made_visible() -> None:
    assert visible("a\x1b]0;title\x07b\r\nc\td\x9b1m") == "a\ufffd]0;title\ufffdb\nc\td\ufffd1m"


def shown(*parts: Part, answer: Answer | None = None, note: str = "", height: int = 24) -> str:
    out = io.StringIO()
    screen = MarkdownScreen(Console(file=out, force_terminal=True, width=60, height=height, color_system="standard"))
    screen.begin()
    for part in parts:
        screen.show(part)
    screen.end(answer or Answer(), note)
    return out.getvalue()


def test_every_block_is_printed_for_good_once_however_the_text_was_cut() -> None:
    text = "# Title\n\nSome **bold** words.\n\n- one\n- two\n\n```\ncode\n```\n"
    for size in (1, 7, len(text)):
        parts = [Part("text", text[at : at + size]) for at in range(0, len(text), size)]
        end = shown(*parts, note="[stopped]").rsplit("\x1b[2K", 1)[-1]  # what stands after the last drawing was erased
        assert "code" in end
        assert "stopped" in end
        assert "Title" in shown(*parts)
        assert "**bold**" not in end


def test_reasoning_is_dim_and_text_is_not_hidden_by_it() -> None:
    text = shown(Part("reasoning", "let me think"), Part("text", "The answer."))
    assert "\x1b[2;3mlet me think" in text
    assert text.rstrip().endswith("The answer.") or "The answer." in text.rsplit("let me think", 1)[1]


def test_no_answer_writes_to_the_terminal_what_the_terminal_would_obey() -> None:
    assert "\x1b]52" not in shown(Part("text", "\x1b]52;c;evil\x07"), Part("reasoning", "\x1b]52;c;evil\x07"))


def test_an_answer_longer_than_the_window_is_all_there() -> None:
    lines = [f"line {index}\n\n" for index in range(40)]
    text = shown(*(Part("text", line) for line in lines), height=5)
    assert all(line.strip() in text for line in lines)


def test_a_pipe_gets_the_characters_of_the_answer_and_its_calls() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen, answer = PlainScreen(out, err), Answer()
    screen.begin()
    for event in (
        {"choices": [{"delta": {"reasoning_content": "hidden", "content": "a\x1b**b**"}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"x":1}'}}]}}]},
    ):
        for part in answer.take(event):
            screen.show(part)
    screen.end(answer, "[cut: no more tokens]")
    assert out.getvalue() == 'a\x1b**b**\nf({"x": 1})\n'
    assert err.getvalue() == "[cut: no more tokens]\n"
