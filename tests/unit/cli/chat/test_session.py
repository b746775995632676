"""A conversation at a prompt, against a stand-in for a server."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.cli.chat.answer import Answer, Part
from millstream.cli.chat.conversation import Conversation
from millstream.cli.chat.screen import PlainScreen
from millstream.cli.chat.session import Session
from millstream.cli.remote import Remote
from tests.support.sse_server import Answer as Served
from tests.support.sse_server import deltas, openai_stand_in


class Typed:
    """Stands in for the keyboard: lines, and what a key does instead."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


class InterruptedScreen(PlainScreen):
    """Ctrl-C is pressed when the word comes."""

    def show(self, part: Part) -> None:
        super().show(part)
        if part.text == "INTERRUPT":
            raise KeyboardInterrupt

    def end(self, answer: Answer, note: str) -> None:
        super().end(answer, note)


def talk(
    answer: Callable[[dict[str, Any]], Served], *lines: str | type[BaseException], system: str | None = None
) -> tuple[str, str, list[list[dict[str, Any]]]]:
    """Type `lines`; returns what was shown, what was said, and the messages of each request."""
    out, err = io.StringIO(), io.StringIO()
    with openai_stand_in(answer) as server:
        remote = Remote(url=server.url)
        Session(remote, Conversation("tiny", system, {}), InterruptedScreen(out, err), Typed(*lines)).run()
    return out.getvalue(), err.getvalue(), [body["messages"] for body in server.bodies]


def echo(body: dict[str, Any]) -> Served:
    return deltas("you said ", body["messages"][-1]["content"], usage={"completion_tokens": 7})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_turns_follow_one_another_with_figures() -> None:
    out, err, requests = talk(echo, "one", "", "two", "/quit", "three")
    assert out == "you said one\nyou said two\n"
    assert err.count("[7 tokens, first after") == 2
    assert requests == [[user("one")], [user("one"), {"role": "assistant", "content": "you said one"}, user("two")]]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("a \\", "b\\", "c"), "a \nb\nc"),
        (('"""a', "", "b", 'c"""'), "a\n\nb\nc"),
        (('"""', "a", '"""'), "a"),
        (('"""a"""',), "a"),
    ],
)
def test_a_question_may_have_several_lines(lines: tuple[str, ...], text: str) -> None:
    assert talk(echo, *lines)[2] == [[user(text)]]


def test_the_commands_set_forget_and_ask_again() -> None:
    out, err, requests = talk(echo, "/retry", "/system Be brief.", "one", "/retry", "/reset", "two", "/system", "/what")
    system = {"role": "system", "content": "Be brief."}
    assert requests == [[system, user("one")], [system, user("one")], [system, user("two")]]
    assert err.count("[system: Be brief.]") == 2
    assert "[nothing was asked]" in err
    assert "/retry " in err.splitlines()[-4]  # the help
    assert out.count("you said one") == 2


def test_ctrl_c_stops_the_answer_keeps_what_came_and_ends_nothing() -> None:
    def answer(body: dict[str, Any]) -> Iterator[Any]:
        yield from deltas("some ", "INTERRUPT") if len(body["messages"]) == 1 else deltas("more")

    out, err, requests = talk(answer, KeyboardInterrupt, "one", "two")
    assert out == "some INTERRUPT\nmore\n"
    assert "[stopped]" in err
    assert "Ctrl-D ends" in err
    assert requests[1] == [user("one"), {"role": "assistant", "content": "some INTERRUPT"}, user("two")]


def test_an_error_ends_the_answer_and_not_the_conversation() -> None:
    answers: Iterator[Served] = iter([(503, {"error": {"message": "not now"}}), deltas("better")])
    out, err, requests = talk(lambda _: next(answers), "one", "/retry")
    assert "503: not now" in err
    assert out == "better\n"
    assert requests == [[user("one")]] * 2


def test_the_user_says_what_a_tool_gives() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    asks = [{"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}]

    def answer(body: dict[str, Any]) -> Served:
        return deltas("It rains.") if body["messages"][-1]["role"] == "tool" else asks

    out, err, requests = talk(answer, "Weather?", "rain", "Weather?", KeyboardInterrupt)
    assert out.splitlines()[:2] == ['weather({"city": "Oslo"})', "It rains."]
    assert requests[1][2] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    assert "the answer is taken back" in err
