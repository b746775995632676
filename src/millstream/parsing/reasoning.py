"""ReasoningStage: text becomes reasoning and the rest. The first stage of the pipeline.

Tags are markup only until the answer begins, unless the format says otherwise: an answer may speak of them. White space beside
a tag belongs to it. Reasoning that is not closed goes to the end of the text; a second opening tag in it is part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.grammar.writing import Frame
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

    `begin` and `end` are the tags; `others` open it as well. With `is_open`, a text whose prompt is not known is taken to begin
    within reasoning. With `is_anywhere`, tags are markup everywhere, and so are, outside of reasoning, `dropped` strings, which
    frame the answer. Such a model writes `after` behind a thought and `answer` before the answer. `examples` are tests; a chat
    template that has all of `template_marks` speaks it.
    """

    name: str
    begin: str
    end: str
    others: tuple[str, ...] = ()
    is_open: bool = False
    is_anywhere: bool = False
    dropped: tuple[str, ...] = ()
    after: str = ""
    answer: str = ""
    template_marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    examples: tuple[Thought, ...] = field(default=(), repr=False)

    @property
    def frame(self) -> Frame:
        """The same, for grammars."""
        return Frame(begin=self.begin, end=self.end, after=self.after, answer=self.answer)

    def closed_by(self, prompt: str) -> bool:
        """Whether a prompt ends in the closing tag, so that there is no reasoning after it."""
        return prompt.rstrip().endswith(self.end)

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends in the opening tag, so that the text after it begins within reasoning."""
        return prompt.rstrip().endswith(self.begin.rstrip())


class ReasoningStage:
    """The reasoning in one text: `think` gets it, `answer` gets the rest."""

    def __init__(self, format_: ReasoningFormat, think: Sink, answer: Sink, *, is_open: bool) -> None:
        self._format = format_
        self._think = think
        self._answer = answer
        self._is_open = is_open
        self._begin = Markers([format_.begin, *format_.others])
        self._end = Markers([format_.end])
        self._frame = Markers([*self._begin.markers, *format_.dropped])
        self._machine = Machine(self._program)

    def feed(self, text: str) -> None:
        """Read on."""
        self._machine.feed(text)

    def finish(self) -> None:
        """There is no more text."""
        self._machine.finish()

    def _program(self, reader: Reader) -> Reading[None]:
        space: list[str] = []
        try:
            if self._is_open:
                yield from reader.space(_nowhere)
                yield from reader.choice(self._begin, _nowhere)  # the model may say it again
                yield from self._reasoning(reader, space)
            if self._format.is_anywhere:
                yield from self._frames(reader, space)
            else:
                yield from self._tags(reader, space)
        except EndOfText:
            return

    def _tags(self, reader: Reader, space: list[str]) -> Reading[None]:
        """Blocks of reasoning, one after another, and then the answer."""
        try:
            yield from reader.space(space.append)
            while (yield from self._tag(reader)):
                yield from self._reasoning(reader, space)
        except EndOfText:
            self._answer("".join(space))
            raise
        self._answer("".join(space))
        yield from reader.rest(self._answer)

    def _tag(self, reader: Reader) -> Reading[bool]:
        """Whether an opening tag came; a part of one, at the end of the text, is text."""
        taken: list[str] = []
        try:
            return (yield from reader.choice(self._begin, taken.append)) is not None
        except EndOfText:
            self._answer("".join(taken))
            raise

    def _frames(self, reader: Reader, space: list[str]) -> Reading[None]:
        while True:
            if (yield from reader.until(self._frame, self._answer)) in self._begin.markers:
                yield from self._reasoning(reader, space)

    def _reasoning(self, reader: Reader, space: list[str]) -> Reading[None]:
        """What stands between the tags, and the white space behind them."""
        space.clear()
        yield from reader.space(_nowhere)
        trimmed = _Trimmed(self._think)
        yield from reader.until(self._end, trimmed.feed)
        yield from reader.space(_nowhere)


class _Trimmed:
    """Passes text on without the white space at its end."""

    def __init__(self, sink: Callable[[str], object]) -> None:
        self._sink = sink
        self._space: list[str] = []

    def feed(self, text: str) -> None:
        kept = text.rstrip()
        if kept:
            self._sink("".join((*self._space, kept)))
            self._space.clear()
        self._space.append(text[len(kept) :])


def _nowhere(text: str) -> None:
    """Drops white space that belongs to a tag."""
