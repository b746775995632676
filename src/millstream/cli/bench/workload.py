"""Workload: what is asked. The same seed makes the same questions, whatever the server answers and however fast."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from millstream.errors import StartupError

Kind = Literal["random", "shared-prefix", "multi-turn", "file"]
WORDS = ("river", "stone", "winter", "garden", "letter", "window", "market", "bridge", "copper", "harbour", "lantern",
         "engine", "paper", "cloud", "violin", "forest", "island", "mirror", "candle", "anchor", "orchard")  # fmt: skip


class Turn(NamedTuple):
    """One question: messages that are put behind the conversation so far, and the tokens its answer may have (None: any)."""

    messages: list[dict[str, Any]]
    max_tokens: int | None


class Session(NamedTuple):
    """A conversation: each turn is asked once the one before it is answered."""

    turns: list[Turn]


class Range(NamedTuple):
    """Whole numbers from `low` to `high`, each as likely."""

    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        """One of them."""
        return dice.randint(self.low, self.high)


def parse_range(text: str, name: str) -> Range:
    """`64`, or `16-128`.

    Raises:
        StartupError: it is neither; names the option.
    """
    low, dash, high = text.partition("-")
    try:
        found = Range(int(low), int(high if dash else low))
    except ValueError:
        raise StartupError(f"--{name} is `{text}`", hint="a number such as 64, or a range such as 16-128") from None
    if not 1 <= found.low <= found.high:
        raise StartupError(f"--{name} is `{text}`; it must begin at 1 or more, and not end below that")
    return found


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What questions look like. Lengths of text are in words, for a server's tokens are its own: a word is one or two."""

    kind: Kind
    prompt_words: Range
    max_tokens: Range
    prefix_words: int
    prefixes: int
    turns: int


def make_sessions(shape: Shape, requests: int | None, seed: int) -> Iterator[Session]:
    """Sessions with `requests` questions in all, or a few more where the last conversation would be cut; None: without end.

    `random`: each question by itself. `shared-prefix`: each begins with one of a few long system prompts. `multi-turn`:
    conversations, each question with all that was said before it.
    """
    dice = random.Random(seed)
    prefixes = [_words(dice, shape.prefix_words) for _ in range(shape.prefixes)] if shape.kind == "shared-prefix" else []
    turns = shape.turns if shape.kind == "multi-turn" else 1
    for number in itertools.count() if requests is None else range(-(-requests // turns)):
        system = [{"role": "system", "content": prefixes[number % len(prefixes)]}] if prefixes else []
        asked = []
        for turn in range(turns):
            text = f"{_words(dice, shape.prompt_words.draw(dice))}\nWrite a story with these words."
            messages = [*(system if turn == 0 else []), {"role": "user", "content": text}]
            asked.append(Turn(messages, shape.max_tokens.draw(dice)))
        yield Session(asked)


def read_sessions(path: Path, requests: int | None, max_tokens: int | None) -> list[Session]:
    """One question for each line of a JSON Lines file, from the top again where more are wanted than it has.

    A line is a string, or an object with `prompt` or `messages`, and perhaps `max_tokens`, which stands above the argument.

    Raises:
        StartupError: the file cannot be read, or a line is none of that; says which.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StartupError(f"file: `{path}` cannot be read: {error}") from None
    turns = [_line(line, f"{path}, line {number}", max_tokens) for number, line in enumerate(lines, 1) if line.strip()]
    if not turns:
        raise StartupError(f"file: `{path}` has no line")
    return [Session([turns[number % len(turns)]]) for number in range(requests or len(turns))]


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None


def _line(line: bytes, where: str, max_tokens: int | None) -> Turn:
    try:
        found = msgspec.json.decode(line, type=str | _Line)
    except msgspec.MsgspecError as error:
        raise StartupError(f"{where}: {error}", hint='a line is "text", {"prompt": "text"} or {"messages": [...]}') from None
    if isinstance(found, str):
        found = _Line(prompt=found)
    if (found.prompt is None) == (found.messages is None):
        raise StartupError(f"{where}: it needs `prompt` or `messages`, and not both")
    messages = [{"role": "user", "content": found.prompt}] if found.messages is None else found.messages
    return Turn(messages, found.max_tokens or max_tokens)


def _words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))
