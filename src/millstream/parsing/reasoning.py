"""ReasoningStage: text becomes reasoning and the rest. The first stage of the pipeline.

Tags are markup only until the answer begins, for it may speak of them. White space beside a tag belongs to it. Reasoning that
is not closed goes to the end of the text; a second opening tag in it is part of it. Formats whose text consists of messages
are read by `frames`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.grammar.writing import Frame
from millstream.parsing.frames import Frames, read_frames
from millstream.parsing.reader import EndOfText, Machine, Markers, Reader, Reading, Sink


@dataclass(frozen=True)
class Thought:
    """A text, and what it means: reasoning and content. `is_open`: the prompt ended in the opening tag."""

    text: str
    reasoning: str = ""
    content: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family of models writes what it thinks.

    `begin` and `end` are the tags, `answer_tags` those around what follows, if there are such. With `is_open`, a text whose
    prompt is not known is taken to begin within reasoning. `is_special`: tags are special tokens. With `frames`, the text
    consists of messages, some of which are reasoning. Models write `after` behind a thought, and `answer` before what follows.
    `examples` are tests; a chat template that has all of `template_marks` speaks it.
    """

    name: str
    begin: str
    end: str
    answer_tags: tuple[str, str] | None = None
    is_open: bool = False
    is_special: bool = False
    frames: Frames | None = None
    after: str = ""
    answer: str = ""
    template_marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    examples: tuple[Thought, ...] = field(default=(), repr=False)

    @property
    def frame(self) -> Frame:
        """The same, for grammars."""
        answer = self.answer or (self.answer_tags[0] if self.answer_tags is not None else "")
        return Frame(begin=self.begin, end=self.end, after=self.after, answer=answer)

    def closed_by(self, prompt: str) -> bool:
        """Whether a prompt ends in the closing tag, so that there is no reasoning after it."""
        return prompt.rstrip().endswith(self.end)

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends in the opening tag, so that the text after it begins within reasoning."""
        return prompt.rstrip().endswith(self.begin.rstrip())


class Span(NamedTuple):
    """Reasoning with its tags, but for white space behind: from and up to a character of the text; None: it is still open."""

    begin: int
    end: int | None


class ReasoningStage:
    """The reasoning in one text: `think` gets it, `answer` gets the rest. `spans` says where it was."""

    def __init__(self, format_: ReasoningFormat, think: Sink, answer: Sink, *, is_open: bool) -> None:
        self.spans: list[Span] = []
        self._format = format_
        self._think = think
        self._answer = answer
        self._is_open = is_open
        self._begin = Markers([format_.begin])
        self._machine = Machine(self._program)

    def feed(self, text: str) -> None:
        """Read on."""
        self._machine.feed(text)

    def finish(self) -> None:
        """There is no more text."""
        self._machine.finish()

    def _program(self, reader: Reader) -> Reading[None]:
        end = Markers(self._format.frames.all_marks if self._format.frames else [self._format.end])
        found = ""
        try:
            if self._is_open:
                yield from reader.space(_nowhere)
                yield from reader.choice(self._begin, _nowhere)  # the model may say it again
                found = yield from self._reasoning(reader, end, 0)
            if self._format.frames is not None:
                yield from read_frames(self._format.frames, reader, found, self._answer, self._message(reader, end))
            else:
                yield from self._tags(reader, end)
        except EndOfText:
            return

    def _message(self, reader: Reader, end: Markers) -> Callable[[int], Reading[str]]:
        return lambda begin: self._reasoning(reader, end, begin)

    def _tags(self, reader: Reader, end: Markers) -> Reading[None]:
        """Blocks of reasoning, one after another, and then the answer."""
        held: list[str] = []  # white space, and tags that are none
        try:
            yield from reader.space(held.append)
            while (yield from reader.choice(self._begin, held.append)) is not None:
                held.clear()
                yield from self._reasoning(reader, end, reader.num_read - len(self._format.begin))
            tags = self._format.answer_tags
            if tags is not None and (yield from reader.choice(Markers(tags[:1]), held.append)):
                held.clear()
                yield from reader.space(_nowhere)
        except EndOfText:
            self._answer("".join(held))
            raise
        self._answer("".join(held))
        if tags is not None:
            yield from self._tagged_answer(reader, tags[1])
        else:
            yield from reader.rest(self._answer)

    def _tagged_answer(self, reader: Reader, close: str) -> Reading[None]:
        """The answer up to its closing tag, which is one only where nothing follows it; a prompt may have opened it."""
        trimmed = Trimmed(self._answer)
        held: list[str] = []
        try:
            while True:
                yield from reader.until(Markers([close]), trimmed.feed)
                held.append(close)
                yield from reader.space(held.append)
                yield from reader.peek()
                trimmed.feed("".join(held))
                held.clear()
        except EndOfText:
            if not held:
                trimmed.flush()
            raise

    def _reasoning(self, reader: Reader, end: Markers, begin: int) -> Reading[str]:
        """What stands before one of `end`, which is returned, and the white space behind it; `begin` is where its tag is."""
        self.spans.append(Span(begin, None))
        trimmed = Trimmed(self._think)
        try:
            yield from reader.space(_nowhere)
            found = yield from reader.until(end, trimmed.feed)
        except EndOfText:
            self.spans[-1] = Span(begin, reader.num_read)
            raise
        self.spans[-1] = Span(begin, reader.num_read)
        if found == self._format.end:
            yield from reader.space(_nowhere)
        return found


class Trimmed:
    """Passes text on without the white space at its end."""

    def __init__(self, sink: Callable[[str], object]) -> None:
        self._sink = sink
        self._space: list[str] = []

    def feed(self, text: str) -> None:
        """More text."""
        kept = text.rstrip()
        if kept:
            self._sink("".join((*self._space, kept)))
            self._space.clear()
        if len(kept) < len(text):
            self._space.append(text[len(kept) :])

    def flush(self) -> None:
        """The white space was none at the end."""
        self._sink("".join(self._space))
        self._space.clear()


def _nowhere(text: str) -> None:
    """Drops white space that belongs to a tag."""
