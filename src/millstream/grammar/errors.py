"""GrammarError: a grammar that a client wrote and that cannot be used."""

from __future__ import annotations


class GrammarError(Exception):
    """The grammar is wrong. `place` is where, in it: a path such as `properties.a`, or empty."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
