"""Listing: which tokens of one choice stand in its `logprobs`, and with which part of its text.

Tokens come as they are made; text may come later, for a character may span tokens and a stop string may be growing. A token is
listed once the client has text of the character in which it begins, and so

- the bytes of all listed tokens, joined, are those of the text;
- of an answer that a stop string ended, those tokens are listed of which the client has something: a token in which the match
  begins is listed whole, and later ones are not (`no_stop_trim` shows the match, so its tokens are listed);
- a token that ended the answer (end of sequence, `stop_token_ids`) is listed with `no_stop_trim` only;
- control tokens that the text leaves out are listed, and have no bytes.

Pure. Nothing is lost or listed twice, however rows are cut or merged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from millstream.errors import InvariantError
from millstream.messages import Abort, FinishReason, Logprobs, Stop
from millstream.text.token_bytes import Place, TokenReader


class Listed(NamedTuple):
    """One token with its log probability, None for the very first of a prompt, and the most likely ones in its place."""

    token_id: int
    place: Place
    logprob: float | None
    top_ids: list[int]
    top: list[float]


class Listing:
    """The tokens of one choice. `reader` is a fresh one."""

    def __init__(self, reader: TokenReader, *, no_stop_trim: bool) -> None:
        self._reader = reader
        self._no_stop_trim = no_stop_trim
        self._waiting: deque[Listed] = deque()
        self._num_chars = 0  # that the client has

    def take(self, text: str, token_ids: list[int], logprobs: Logprobs | None, finish: FinishReason | None) -> list[Listed]:
        """Take a row; returns the tokens to list with it."""
        self._num_chars += len(text)
        self._waiting.extend(listed_tokens(self._reader, token_ids, logprobs))
        if isinstance(finish, Stop) and isinstance(finish.matched, int) and not self._no_stop_trim:
            self._waiting.pop()
        if finish is None or isinstance(finish, Abort) or (isinstance(finish, Stop) and isinstance(finish.matched, str)):
            return list(self._shown())
        return list(self._waiting)

    def _shown(self) -> Iterator[Listed]:
        while self._waiting and self._waiting[0].place.offset < self._num_chars:
            yield self._waiting.popleft()


def listed_tokens(reader: TokenReader, token_ids: list[int], logprobs: Logprobs | None) -> Iterator[Listed]:
    """Each token with what was said about it.

    Raises:
        InvariantError: there is not one of each.
    """
    count = 0 if logprobs is None else len(logprobs.chosen)
    if count != len(token_ids):
        raise InvariantError(f"{len(token_ids)} tokens came with {count} log probabilities")
    if logprobs is not None:
        for token_id, chosen, ids, top in zip(token_ids, logprobs.chosen, logprobs.top_ids, logprobs.top, strict=True):
            yield Listed(token_id, reader.place(token_id), chosen, ids, top)


def listed_prompt(reader: TokenReader, token_ids: list[int], logprobs: Logprobs | None) -> list[Listed]:
    """All tokens of a prompt; the first has no log probability."""
    first = Listed(token_ids[0], reader.place(token_ids[0]), None, [], [])
    return [first, *listed_tokens(reader, token_ids[1:], logprobs)]
