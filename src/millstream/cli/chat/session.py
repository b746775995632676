"""Session: asks, shows, remembers; the commands that begin with a slash. Ctrl-C ends an answer, never the session."""

from __future__ import annotations

import time
from collections.abc import Callable

from millstream.cli.chat.answer import Answer
from millstream.cli.chat.conversation import Conversation
from millstream.cli.chat.screen import Screen
from millstream.cli.remote import Remote
from millstream.errors import StartupError

HELP = """/system TEXT   set the system prompt; alone, show it
/retry         ask the last question again
/reset         forget the conversation
/quit          end, as Ctrl-D does
A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several lines. Ctrl-C stops an answer."""
QUOTES = '"""'
NOTES = {"length": "[cut: no more tokens]", "content_filter": "[cut by a filter]"}


class Stopped(Exception):
    """The user stopped the answer; what had come of it is kept."""


def ask(remote: Remote, conversation: Conversation, screen: Screen, *, with_figures: bool) -> Answer:
    """Have the conversation's next answer come in and show it; it becomes the next turn.

    Raises:
        Stopped: Ctrl-C.
        ServerError: the server refused or failed. What had come is shown, and not kept.
    """
    answer, began, first = Answer(), time.monotonic(), None
    stopped = False
    screen.begin()
    try:
        with remote.stream("/v1/chat/completions", conversation.body(count_tokens=with_figures)) as events:
            for event in events:
                for part in answer.take(event):
                    first = first or time.monotonic()
                    screen.show(part)
    except KeyboardInterrupt:
        stopped = True
    except BaseException:
        screen.end(answer, "")
        raise
    note = "[stopped]" if stopped else NOTES.get(answer.finish_reason or "", "")
    figures = _figures(answer, began, first) if with_figures else ""
    screen.end(answer, " ".join(filter(None, (note, figures))))
    conversation.answered(answer)
    if stopped:
        raise Stopped
    return answer


class Session:
    """One conversation at a prompt. `read` shows a prompt and returns a line; EOFError is its end."""

    def __init__(self, remote: Remote, conversation: Conversation, screen: Screen, read: Callable[[str], str]) -> None:
        self._remote, self._conversation, self._screen, self._read = remote, conversation, screen, read

    def run(self) -> None:
        """Until /quit or the end of input."""
        while (text := self._question()) is not None:
            if text.startswith("/"):
                if not self._command(text):
                    return
            elif text.strip():
                self._conversation.ask(text)
                self._answer()

    def _question(self) -> str | None:
        """What the user wants, of one line or several; None at the end."""
        try:
            line = self._read("> ")
            if line.lstrip().startswith(QUOTES):
                return self._quoted(line.lstrip().removeprefix(QUOTES))
            while line.endswith("\\"):
                line = f"{line[:-1]}\n{self._read('. ')}"
            return line
        except EOFError:
            return None
        except KeyboardInterrupt:
            self._screen.say("[/quit or Ctrl-D ends]")
            return ""

    def _quoted(self, line: str) -> str:
        lines = []
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            line = self._read(". ")
        return "\n".join([*lines, line.rstrip().removesuffix(QUOTES)]).strip("\n")

    def _command(self, text: str) -> bool:
        """Do what a slash asks for; False where that is the end."""
        name, _, rest = text[1:].partition(" ")
        if name in ("quit", "exit", "q"):
            return False
        if name == "system":
            if rest.strip():
                self._conversation.system = rest.strip()
            self._screen.say(f"[system: {self._conversation.system or 'none'}]")
        elif name == "reset":
            self._conversation.reset()
            self._screen.say("[forgotten]")
        elif name == "retry":
            if self._conversation.rewind():
                self._answer()
            else:
                self._screen.say("[nothing was asked]")
        else:
            self._screen.say(HELP)
        return True

    def _answer(self) -> None:
        """The next answer, and those after it while the model calls tools, whose results the user types."""
        try:
            while calls := ask(self._remote, self._conversation, self._screen, with_figures=True).calls:
                results = [self._read(f"result of {call['function']['name']}> ") for call in calls]
                for call, result in zip(calls, results, strict=True):
                    self._conversation.result(call, result)
        except Stopped:
            pass
        except (KeyboardInterrupt, EOFError):  # at a result
            self._conversation.rewind()
            self._screen.say("[no results: the answer is taken back; /retry asks again]")
        except StartupError as error:
            self._screen.say(f"[{error}{f' Hint: {error.hint}.' if error.hint else ''} /retry asks again]")


def _figures(answer: Answer, began: float, first: float | None) -> str:
    """Tokens and times of an answer; nothing where it had no text, or the server counts none."""
    tokens = answer.usage.get("completion_tokens")
    if first is None or not isinstance(tokens, int):
        return ""
    rate = (tokens - 1) / max(1e-9, time.monotonic() - first)
    speed = f", {rate:,.0f} tokens/s" if tokens > 1 else ""
    return f"[{tokens:,} tokens, first after {first - began:.2f} s{speed}]"
