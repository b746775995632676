"""How an answer is shown while it comes: as it is, for pipes and files, or as Markdown in a terminal.

Text of a model is untrusted: on a terminal its control characters are made visible, so that no answer moves the cursor, sets
the title or writes to the clipboard. In a pipe it is exact.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from millstream.cli.chat.answer import Answer, Part

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)


class Screen(Protocol):
    """Shows answers, one at a time: `begin`, parts, `end`."""

    def begin(self) -> None:
        """An answer has been asked for."""

    def show(self, part: Part) -> None:
        """Text that has just come."""

    def end(self, answer: Answer, note: str) -> None:
        """Nothing more comes. `note` says how it ended, where that is worth a line."""

    def say(self, text: str) -> None:
        """A line of the program itself."""


class PlainScreen:
    """The answer's own characters and a line for each tool call; no reasoning, and notes to the other stream."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def begin(self) -> None:
        """Nothing to show yet."""

    def show(self, part: Part) -> None:
        """Write it, at once."""
        if part.kind == "text":
            self._out.write(part.text)
            self._out.flush()

    def end(self, answer: Answer, note: str) -> None:
        """End the line, and write the calls."""
        if answer.text and not answer.text.endswith("\n"):
            self._out.write("\n")
        self._out.writelines(f"{_call_line(call)}\n" for call in answer.calls)
        self._out.flush()
        if note:
            self.say(note)

    def say(self, text: str) -> None:
        """To the other stream: what is piped on is the answer alone."""
        self._err.write(f"{text}\n")


class MarkdownScreen:
    """Markdown that grows: finished blocks are printed for good, only the one under way is drawn again and again.

    So an answer may be longer than the window, and scrolling back shows all of it once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._open = Part("text", "")  # what is not printed for good

    def begin(self) -> None:
        """Make room for what comes."""
        self._open = Part("text", "")
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, part: Part) -> None:
        """Add it to the block under way, which ends where another kind begins or a blank line stands outside code."""
        assert self._live is not None
        if part.kind != self._open.kind:
            self._print(self._open)
            self._open = Part(part.kind, "")
        done, rest = split_blocks(self._open.text + visible(part.text))
        if done:
            self._print(Part(part.kind, done))
        self._open = Part(part.kind, rest)
        self._live.update(_Tail(_rendered(self._open)), refresh=True)

    def end(self, answer: Answer, note: str) -> None:
        """Print what is left, the tool calls and the note."""
        assert self._live is not None
        self._live.stop()
        self._print(self._open)
        for call in answer.calls:
            self._console.print(Text(visible(_call_line(call)), style="cyan"))
        if note:
            self.say(note)

    def say(self, text: str) -> None:
        """A dim line."""
        self._console.print(Text(visible(text), style="dim"))

    def _print(self, block: Part) -> None:
        if block.text.strip():
            self._console.print(_rendered(block))


class _Tail:
    """The last lines of something, as many as the window has: what is under way is at the end."""

    def __init__(self, inner: Markdown | Text) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inner, options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def visible(text: str) -> str:
    """The text with control characters, line ends and tabs aside, replaced by a sign for each."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def split_blocks(text: str) -> tuple[str, str]:
    """Finished blocks, and the one under way: the cut is the last blank line that stands in no fenced code."""
    cut, start = 0, 0
    fence: str | None = None
    for line in text.splitlines(keepends=True):
        start += len(line)
        if found := _FENCE.match(line):
            mark = found.group(1)
            if fence is None:
                fence = mark
            elif mark.startswith(fence) and not line.strip(" \n").strip(fence[0]):
                fence = None
        elif fence is None and line.endswith("\n") and not line.strip():
            cut = start
    return text[:cut], text[cut:]


def _rendered(block: Part) -> Markdown | Text:
    return Markdown(block.text) if block.kind == "text" else Text(block.text.strip("\n"), style="dim italic")


def _call_line(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    with suppress(ValueError):  # half of it, or a model's mistake: shown as it came
        arguments = json.dumps(json.loads(arguments), ensure_ascii=False)
    return f"{call['function']['name']}({arguments})"
