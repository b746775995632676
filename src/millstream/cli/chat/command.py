"""The command: which way to talk, from the arguments and from what standard input and output are."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from platformdirs import user_state_path
from rich.console import Console

from millstream.cli.chat.conversation import Conversation
from millstream.cli.chat.screen import MarkdownScreen, PlainScreen
from millstream.cli.chat.session import Session, Stopped, ask
from millstream.cli.remote import Remote, command_app
from millstream.errors import StartupError

INTERRUPTED = 130  # as a shell has it
HISTORY_LINES = 1000
EXAMPLES = """
millstream chat
millstream chat "What is a radix tree?"
millstream chat "Sum this up:" < notes.txt > summary.txt
millstream chat --url http://127.0.0.1:8000 --system "Answer in French." --temperature 0
"""


def chat(
    question: str | None = None,
    /,
    *,
    remote: Remote | None = None,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    tools: Path | None = None,
    plain: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    no_history: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Talk to a running server, ours or any with the OpenAI API.

    With a question, or with text on standard input, it answers and ends; otherwise it is a conversation: /help lists its
    commands. In a pipe or a file the answer is the model's own characters. Exits with 0; 1: the server failed or refused; 2:
    wrong arguments; 130: interrupted.

    Parameters
    ----------
    question
        Asked once. What a pipe or a file brings on standard input stands behind it.
    system
        The system prompt.
    temperature
        How freely tokens are drawn; 0: always the likeliest.
    max_tokens
        Tokens an answer may have.
    seed
        Makes draws repeatable, where the server can.
    tools
        JSON file with a list of tools, as in a request: their calls are shown, and you are asked for what they give.
    plain
        The answer as it comes, without Markdown or colours.
    no_history
        Neither read nor keep the lines typed at the prompt.
    """
    remote = remote or Remote()
    sampling = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed, "tools": _tools(tools)}
    asked = _whole_question(question)
    if asked is not None and not asked.strip():
        raise StartupError("there is no question: standard input is empty.")
    conversation = Conversation(remote.model_name(), system, sampling)
    console = Console()
    is_rich = console.is_terminal and not console.is_dumb_terminal and not plain
    screen = MarkdownScreen(console) if is_rich else PlainScreen(sys.stdout, sys.stderr)
    if asked is None:
        read = _line_reader(None if no_history else _history_file())
        Session(remote, conversation, screen, read).run()
        return 0
    conversation.ask(asked)
    try:
        ask(remote, conversation, screen, with_figures=False)
    except (Stopped, KeyboardInterrupt):
        return INTERRUPTED
    return 0


def _whole_question(question: str | None) -> str | None:
    """What is asked once: the argument, standard input, or both; None for a conversation.

    Beside an argument only a pipe or a file is read: whatever else standard input is, nobody may ever close it.
    """
    if question is None:
        return None if sys.stdin.isatty() and sys.stdout.isatty() else sys.stdin.read()
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or no file
        return question
    if not stat.S_ISFIFO(mode) and not stat.S_ISREG(mode):
        return question
    text = sys.stdin.read()
    return f"{question}\n\n{text}" if text.strip() else question


def _tools(path: Path | None) -> list[Any] | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"tools: `{path}` cannot be read: {error}", hint="a JSON list, as `tools` of a request") from None


def _history_file() -> Path:
    return user_state_path("millstream") / "chat_history"


def _line_reader(history: Path | None) -> Callable[[str], str]:
    """`input`, with line editing, and with the lines of `history`, to which each new one is added."""
    try:
        import readline
    except ImportError:  # an interpreter without it edits nothing
        return input
    readline.clear_history()
    if history is not None:
        with suppress(OSError):  # none yet, or not ours to read: then there is none
            readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)

    def read(prompt: str) -> str:
        line = input(prompt)
        if history is not None and line.strip():
            with suppress(OSError):  # a conversation needs no history
                history.parent.mkdir(parents=True, exist_ok=True)
                history.touch(mode=0o600)  # what one typed is nobody else's
                readline.write_history_file(history)
        return line

    return read


app = command_app("chat", chat, EXAMPLES)
