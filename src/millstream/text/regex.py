"""Stop regexes as machines that read text once, in time linear in it, and know at each character where a match began.

`compile_patterns` is called by the entry to check a request and by the scheduler to run it; a pattern is shared by all requests
that have it and changes only in its caches. There is no backtracking: a pattern is a set of positions (one
for each single character in it), kept as the bits of an integer, and every character moves all of them at once. Glushkov, 'The
abstract theory of automata' (1961).
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.errors import RequestError
from millstream.messages.sampling import MAX_STOP_REGEX_BYTES, MAX_STOP_REGEXES
from millstream.text.regex_syntax import PARAM, Choice, End, Node, One, Repeat, Sequence, Start, parse

# characters of a pattern, and of all patterns of a request, with repetitions written out: they bound what a character of text
# can cost
MAX_POSITIONS = 1000
MAX_POSITIONS_TOGETHER = 2000
CACHE_SIZE = 1024  # entries of each cache of a pattern; a full one is emptied
COMPILED = 128  # patterns kept for the next request that has them


class Pattern:
    """One compiled pattern. Positions are bits: `first` may begin a match, `accepting` may end it."""

    def __init__(self, machine: _Machine, whole: _Fragment) -> None:
        anchors = machine.starts | machine.ends
        at_start = machine.behind(whole.first, machine.starts)
        accepting = machine.before_ends(whole.last)
        self.matches_empty = whole.nullable or bool(machine.behind(whole.first, anchors) & whole.last & anchors)
        useful = machine.leading_to(accepting & ~anchors) & ~anchors  # from the others no match can come: never held back for
        self.accepting = accepting & ~anchors
        self.first = whole.first & useful
        self.first_at_start = at_start & useful
        self.size = len(machine.follow)
        self._follow = [mask & useful for mask in machine.follow]
        self._singles = list(machine.singles.items())
        self._taking: dict[str, int] = {}
        self._successors: dict[int, int] = {}

    def taking(self, char: str) -> int:
        """Positions that `char` can stand at."""
        mask = self._taking.get(char)
        if mask is None:
            mask = 0
            for matches, positions in self._singles:
                if matches(char):
                    mask |= positions
            if len(self._taking) >= CACHE_SIZE:
                self._taking.clear()
            self._taking[char] = mask
        return mask

    def successors(self, positions: int) -> int:
        """Positions that may come right after any of `positions`."""
        mask = self._successors.get(positions)
        if mask is None:
            mask = 0
            for position in _bits(positions):
                mask |= self._follow[position]
            if len(self._successors) >= CACHE_SIZE:
                self._successors.clear()
            self._successors[positions] = mask
        return mask


def compile_patterns(sources: tuple[str, ...]) -> tuple[Pattern, ...]:
    """Compile all stop regexes of a request.

    Raises:
        RequestError: they are too many, too long or too large, one is not valid, outside the subset, or matches the empty text.
    """
    if len(sources) > MAX_STOP_REGEXES:
        raise RequestError(f"stop_regex has {len(sources)} patterns; at most {MAX_STOP_REGEXES} are allowed.", param=PARAM)
    for source in sources:
        if (size := len(source.encode())) > MAX_STOP_REGEX_BYTES:
            raise RequestError(
                f"a pattern of stop_regex has {size} bytes; at most {MAX_STOP_REGEX_BYTES} are allowed.", param=PARAM
            )
    patterns = tuple(_compile(source) for source in dict.fromkeys(sources))
    if (total := sum(pattern.size for pattern in patterns)) > MAX_POSITIONS_TOGETHER:
        raise RequestError(
            f"the patterns of stop_regex have {total} characters, repetitions written out; "
            f"at most {MAX_POSITIONS_TOGETHER} are allowed.",
            param=PARAM,
        )
    return patterns


@functools.lru_cache(maxsize=COMPILED)
def _compile(source: str) -> Pattern:
    machine = _Machine(source)
    pattern = Pattern(machine, machine.build(parse(source)))
    if pattern.matches_empty:
        raise RequestError(f"stop_regex `{source}` matches the empty text; it would stop everything.", param=PARAM)
    return pattern


class _Fragment(NamedTuple):
    """A part of a pattern: the positions that may begin it, those that may end it, and whether it may be empty."""

    first: int
    last: int
    nullable: bool


_NOTHING = _Fragment(0, 0, nullable=True)


class _Machine:
    """The positions of one pattern and which may follow which, filled by `build`. An anchor is a position without character."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.follow: list[int] = []
        self.singles: dict[Callable[[str], object], int] = {}  # test of a character -> the positions it can stand at
        self.starts = 0
        self.ends = 0

    def build(self, node: Node) -> _Fragment:
        """Add `node`. Parts are joined from the right, which keeps the work linear in the positions."""
        match node:
            case One(expression, flags):
                test = _single(expression, flags)
                position = self._position()
                self.singles[test] = self.singles.get(test, 0) | position
                return _Fragment(position, position, nullable=False)
            case Start():
                position = self._position()
                self.starts |= position
                return _Fragment(position, position, nullable=False)
            case End():
                position = self._position()
                self.ends |= position
                return _Fragment(position, position, nullable=False)
            case Sequence(parts):
                whole = _NOTHING
                for part in reversed(parts):
                    whole = self._join(self.build(part), whole)
                return whole
            case Choice(options):
                built = [self.build(option) for option in options]
                first = functools.reduce(int.__or__, (each.first for each in built))
                last = functools.reduce(int.__or__, (each.last for each in built))
                return _Fragment(first, last, any(each.nullable for each in built))
            case Repeat(part, low, high):
                return self._repeat(part, low, high)

    def _repeat(self, part: Node, low: int, high: int | None) -> _Fragment:
        """Write the repetition out: x{2,4} is xx(x(x)?)?, x{2,} is xx+."""
        if high is None:
            whole = self.build(part)
            self._connect(whole.last, whole.first)
            whole = whole._replace(nullable=whole.nullable or low == 0)
            optional, required = 0, max(low - 1, 0)
        else:
            whole = _NOTHING
            optional, required = high - low, low
        for copy in range(optional + required):
            before = len(self.follow)
            whole = self._join(self.build(part), whole)
            if copy < optional:
                whole = whole._replace(nullable=True)
            if len(self.follow) == before:  # the part is empty: more copies add nothing
                break
        return whole

    def _join(self, left: _Fragment, right: _Fragment) -> _Fragment:
        self._connect(left.last, right.first)
        return _Fragment(
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
            left.nullable and right.nullable,
        )

    def _connect(self, from_: int, to: int) -> None:
        if to:
            for position in _bits(from_):
                self.follow[position] |= to

    def _position(self) -> int:
        if len(self.follow) >= MAX_POSITIONS:
            raise RequestError(
                f"stop_regex `{self._source}` is too large: with its repetitions written out it has more than "
                f"{MAX_POSITIONS} characters.",
                param=PARAM,
            )
        self.follow.append(0)
        return 1 << len(self.follow) - 1

    def behind(self, first: int, anchors: int) -> int:
        """`first` and every position that it leads to with nothing but `anchors` on the way."""
        reached, new = first, first & anchors
        while new:
            found = self._followers(new)
            new = found & anchors & ~reached
            reached |= found
        return reached

    def before_ends(self, last: int) -> int:
        """`last` and every position with nothing but ends of the text between it and the end of the pattern."""
        return self._closed(last, self.ends) if self.ends else last

    def leading_to(self, accepting: int) -> int:
        """`accepting` and every position from which characters can lead there."""
        return self._closed(accepting, ~(self.starts | self.ends))

    def _followers(self, positions: int) -> int:
        found = 0
        for position in _bits(positions):
            found |= self.follow[position]
        return found

    def _closed(self, reached: int, through: int) -> int:
        """`reached` and all positions before it, by steps onto positions of `through`."""
        before = -1
        while reached != before:  # few rounds: parts are built from the right, so all but loops lead to lower positions
            before = reached
            for position, mask in enumerate(self.follow):
                if mask & reached & through:
                    reached |= 1 << position
        return reached


@functools.lru_cache(maxsize=1024)
def _single(expression: str, flags: int) -> Callable[[str], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sets that may mean something else one day
        return re.compile(expression, flags).fullmatch


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
